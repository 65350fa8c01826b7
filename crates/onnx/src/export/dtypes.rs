//! The dtypes that operators take.

use kiln_ir::{DType, Kind};

/// Returns the dtype in which an operator is written for operands of `dtype`: that itself, else a wider one.
///
/// Schemas of `ai.onnx` lack floats of 8 bits and bf16 in many operators, and narrow integers in sums and products.
/// Where a schema has a dtype that no known runtime has kernels for, it is widened too.
pub(super) fn operator_dtype(op: &str, opset: i64, dtype: DType) -> DType {
    let is_narrow = dtype == DType::Bool || dtype.kind() == Kind::Int && dtype.size() <= 2;
    let since = match dtype {
        _ if dtype.float8().is_some() => match op {
            "Cast" => 0,
            "Identity" | "If" | "Loop" | "Reshape" | "Scan" | "Shape" => 19,
            "IsInf" | "IsNaN" => 20,
            "Pad" | "Squeeze" | "Transpose" => 21,
            _ => i64::MAX,
        },
        DType::BF16 => match op {
            "Acos" | "Acosh" | "Asin" | "Asinh" | "Atan" | "Atanh" | "AveragePool" | "Conv"
            | "ConvTranspose" | "Cos" | "Cosh" | "Elu" | "HardSigmoid" | "HardSwish"
            | "MaxPool" | "Mish" | "Round" | "Selu" | "Sin" | "Sinh" | "Softplus" | "Softsign"
            | "Tan" => 22,
            "IsInf" => 20,
            "TopK" => i64::MAX,
            _ => 0,
        },
        DType::F16 => match op {
            "IsInf" => 20,
            "TopK" => i64::MAX,
            _ => 0,
        },
        _ if is_narrow => match op {
            "ArgMax" | "ArgMin" | "CumSum" | "MatMul" | "Pow" | "ReduceMax" | "ReduceMin"
            | "ReduceProd" | "ReduceSum" | "TopK" => i64::MAX,
            _ => 0,
        },
        _ => 0,
    };
    match opset < since {
        true if is_narrow => DType::I32,
        true => DType::F32,
        false => dtype,
    }
}
