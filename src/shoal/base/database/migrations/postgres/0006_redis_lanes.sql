-- Lanes on Redis. The generation, which the server has too, tells lanes that were lost, and those of another store.
CREATE TABLE lane_generation (
    one SMALLINT PRIMARY KEY CHECK (one = 1),
    id  TEXT NOT NULL
);
