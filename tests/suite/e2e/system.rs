//! Tests that need more of the machine than `make test` asks for: `make test-all` runs them.

mod deployments;
mod readme;
