"""The table of `calibrate`. tests/cli/test_calibrate.py tests its other behaviour."""

from __future__ import annotations

from gpu_scheduler.core.scheduling.needs import Advice, WorkloadClass
from gpu_scheduler.show.calibrate import CalibrationView, to_text


def test_the_table_of_calibrate_fits_the_terminal() -> None:
    family = WorkloadClass(
        "/home/me/" + "long/" * 20 + "t.py", "qwen2.5-vl-32b-inst", 2, 8300, 8300, None, 1, 60.0
    )
    entry = {"share": 0.5, "vram": 20000, "gpus": 2}
    view = CalibrationView("llm_config.json", [Advice(family, 0.5, entry)], {"qwen2.5-vl-32b-inst": entry})
    whole, cut = to_text(view).splitlines(), to_text(view, 80).splitlines()
    assert max(map(len, cut[:2])) <= 80 < len(whole[1])
    assert cut[2].strip() == f"{family.program}; current entry 0.5"
    # Truncated cells appear in full below the table.
    assert '  "qwen2.5-vl-32b-inst": {"share": 0.5, "vram": 20000, "gpus": 2}' in cut
