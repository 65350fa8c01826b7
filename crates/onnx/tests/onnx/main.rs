//! Models of ONNX: the standard's tests, models that others exported, models that Kiln exports, damaged files.

mod damage;
mod dtypes;
mod exported;
mod exports;
mod hostile;
mod learn;
mod networks;
mod newer;
mod peers;
mod random;
mod results;
mod standard;
