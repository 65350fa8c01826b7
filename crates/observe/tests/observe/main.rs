//! Tests of what is observed of models.

mod metrics;
mod values;
