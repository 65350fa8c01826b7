//! Tests of what is observed of models.

mod health;
mod metrics;
mod values;
