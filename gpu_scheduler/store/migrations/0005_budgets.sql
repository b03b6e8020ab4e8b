-- What attempts declare, in memory: a share is a declaration of that part of each GPU.

ALTER TABLE attempt ADD COLUMN budgets TEXT NOT NULL DEFAULT '{}';    -- JSON {UUID: MiB}; null: GPU of unknown
                                                                      -- size; {}: nothing was declared

UPDATE attempt SET budgets = (
    SELECT json_group_object(
        one.value,
        coalesce(
            attempt.vram,
            CASE WHEN attempt.whole THEN gpu.total_mib ELSE attempt.share * gpu.total_mib / 1000 END
        )
    )
    FROM json_each(attempt.gpus) AS one LEFT JOIN gpu ON gpu.uuid = one.value
) WHERE vram IS NOT NULL OR share BETWEEN 1 AND 999;
