//! Tests of what is observed of models.

mod values;
