//! Models of ONNX: the standard's tests, models that others exported, damaged files.

mod damage;
mod exported;
mod results;
mod standard;
