-- Forecasts are computed when they are asked for, and no longer stored.
DROP TABLE forecast;
