//! What each replica counts by itself while Redis is away, how it knows its share, and what Redis is told when it is back.

mod model;
