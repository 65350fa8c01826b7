//! The names in pickles: those that are built, and those that are refused.

use kiln_tensor::DType;
use std::sync::Arc;

/// Kiln's dtypes under PyTorch's names, and the classes of their storages.
pub(super) const DTYPES: [(DType, &str, &str); 17] = [
    (DType::Bool, "bool", "BoolStorage"),
    (DType::U8, "uint8", "ByteStorage"),
    (DType::I8, "int8", "CharStorage"),
    (DType::I16, "int16", "ShortStorage"),
    (DType::I32, "int32", "IntStorage"),
    (DType::I64, "int64", "LongStorage"),
    (DType::U16, "uint16", UNTYPED),
    (DType::U32, "uint32", UNTYPED),
    (DType::U64, "uint64", UNTYPED),
    (DType::F16, "float16", "HalfStorage"),
    (DType::BF16, "bfloat16", "BFloat16Storage"),
    (DType::F32, "float32", "FloatStorage"),
    (DType::F64, "float64", "DoubleStorage"),
    (DType::F8E4M3, "float8_e4m3fn", UNTYPED),
    (DType::F8E5M2, "float8_e5m2", UNTYPED),
    (DType::F8E4M3FNUZ, "float8_e4m3fnuz", UNTYPED),
    (DType::F8E5M2FNUZ, "float8_e5m2fnuz", UNTYPED),
];

/// The class of storages of bytes, which newer dtypes use.
pub(super) const UNTYPED: &str = "UntypedStorage";

/// Names that are refused: a description, what to save instead, and prefixes. Names that are neither here nor known are
/// refused as code that would run.
const REFUSED: [(&str, &str, &[&str]); 14] = [
    (
        "a complex tensor",
        "torch.view_as_real(x)",
        &["torch.complex", "torch.Complex"],
    ),
    (
        "an 8-bit float tensor",
        "x.to(torch.bfloat16)",
        &["torch.float8", "torch.Float8"],
    ),
    (
        "a 4-bit float tensor",
        "x.to(torch.bfloat16)",
        &["torch.float4"],
    ),
    (
        "a quantised tensor",
        "x.dequantize()",
        &[
            "torch.quint",
            "torch.qint",
            "torch.QU",
            "torch.QI",
            "torch.per_",
            "torch._utils._rebuild_qtensor",
        ],
    ),
    ("a tensor of bits", "x.view(torch.uint8)", &["torch.bits"]),
    (
        "a tensor of integers of unusual width",
        "x.to(torch.int64)",
        &["torch.uint", "torch.int"],
    ),
    (
        "a sparse tensor",
        "x.to_dense()",
        &[
            "torch._utils._rebuild_sparse_",
            "torch.serialization._get_layout",
        ],
    ),
    (
        "a nested tensor",
        "list(x.unbind())",
        &["torch._utils._rebuild_nested_"],
    ),
    (
        "a tensor without values",
        "it from a real device",
        &["torch._utils._rebuild_meta_"],
    ),
    (
        "a tensor of another device",
        "x.cpu()",
        &[
            "torch._utils._rebuild_device_",
            "torch._utils._rebuild_xla_",
        ],
    ),
    (
        "a tensor of a class of its own",
        "plain tensors",
        &["torch._utils._rebuild_wrapper_"],
    ),
    (
        "a tensor of a class of its own",
        "x.as_subclass(torch.Tensor)",
        &["torch._tensor._rebuild_from_type"],
    ),
    (
        "a storage by itself",
        "a tensor over it",
        &["torch.storage._load_from_bytes"],
    ),
    (
        "a value of NumPy's",
        "float(x), or torch.from_numpy(x)",
        &["numpy."],
    ),
];

/// The meaning of a name in a pickle.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Global {
    /// `OrderedDict`, and `Counter`, whose argument is a dict.
    Dict,
    /// `torch.Size`.
    Size,
    /// `torch.device`.
    Device,
    /// `_codecs.encode`, by which protocol 2 writes bytes: called with a text and `latin1`.
    Encode,
    /// The class of tensors.
    TensorClass,
    /// The class of parameters, which old files call with a tensor.
    Parameter,
    /// `_rebuild_tensor` and `_rebuild_tensor_v2`: storage, offset, sizes, strides, and arguments that are ignored.
    Tensor,
    /// `_rebuild_tensor_v3`, with a dtype after these.
    TensorOfDtype,
    /// `_rebuild_parameter` and `_rebuild_parameter_with_state`: a tensor, and arguments that are ignored.
    RebuildParameter,
    /// `_rebuild_from_type_v2`: a function, the class, arguments, attributes.
    FromType,
    /// A dtype.
    Dtype(DType),
    /// The class of storages of a dtype, or of old tensors; `None` for bytes.
    StorageOf(Option<DType>),
    /// The class of bytes, which protocol 2 calls without arguments for empty bytes.
    Bytes,
    /// `numpy.ndarray`, the class.
    ArrayClass,
    /// `numpy.core.multiarray._reconstruct`: an array that is still empty.
    NewArray,
    /// `numpy.core.numeric._frombuffer`: an array of bytes, dtype, shape and order.
    ArrayOfBytes,
    /// `numpy.dtype`, of a name like `u1`.
    ArrayDtype,
    /// A value of a kind that Kiln does not have, with advice.
    Refused(Arc<str>),
}

/// Looks up the meaning of `module.name`.
///
/// # Errors
/// If the name is not known: a message.
pub(super) fn global(module: &str, name: &str) -> Result<Global, String> {
    let path = format!("{module}.{name}");
    if let Some(global) = torch_type(module, name) {
        return Ok(global);
    }
    Ok(match path.as_str() {
        "collections.OrderedDict" | "collections.Counter" => Global::Dict,
        "torch.Size" => Global::Size,
        "torch.device" => Global::Device,
        "_codecs.encode" => Global::Encode,
        "torch.Tensor" | "torch._tensor.Tensor" | "torch.autograd.variable.Variable" => {
            Global::TensorClass
        }
        "torch.nn.parameter.Parameter" | "torch.nn.parameter.Buffer" => Global::Parameter,
        "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2" => Global::Tensor,
        "torch._utils._rebuild_tensor_v3" => Global::TensorOfDtype,
        "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state" => {
            Global::RebuildParameter
        }
        "torch._tensor._rebuild_from_type_v2" => Global::FromType,
        _ => match REFUSED
            .iter()
            .find(|row| row.2.iter().any(|start| path.starts_with(start)))
        {
            Some((what, instead, _)) => Global::Refused(
                format!("{what} (`{path}`), which Kiln does not have; in PyTorch, save {instead}")
                    .into(),
            ),
            None => return Err(unknown(&path)),
        },
    })
}

/// Looks up `module.name` in a pickle that is not a checkpoint: dicts, bytes and NumPy's arrays.
///
/// # Errors
/// As [`global`].
pub(super) fn plain(module: &str, name: &str) -> Result<Global, String> {
    let path = format!("{module}.{name}");
    Ok(match path.as_str() {
        "collections.OrderedDict" => Global::Dict,
        "_codecs.encode" => Global::Encode,
        "__builtin__.bytes" | "builtins.bytes" => Global::Bytes,
        "numpy.ndarray" => Global::ArrayClass,
        "numpy.dtype" => Global::ArrayDtype,
        // NumPy 2 renamed these.
        "numpy.core.multiarray._reconstruct" | "numpy._core.multiarray._reconstruct" => {
            Global::NewArray
        }
        "numpy.core.numeric._frombuffer" | "numpy._core.numeric._frombuffer" => {
            Global::ArrayOfBytes
        }
        _ => {
            return Err(format!(
                "the pickle names `{path}`, and loading that would run code, which Kiln never does"
            ));
        }
    })
}

/// Dtypes and classes of storages.
fn torch_type(module: &str, name: &str) -> Option<Global> {
    if !matches!(module, "torch" | "torch.storage" | "torch.cuda") {
        return None;
    }
    if name == UNTYPED {
        return Some(Global::StorageOf(None));
    }
    DTYPES.iter().find_map(|(dtype, torch, storage)| {
        let class = storage
            .strip_suffix("Storage")
            .filter(|_| *storage != UNTYPED);
        if module == "torch" && name == *torch {
            return Some(Global::Dtype(*dtype));
        }
        // Tensors had a class per dtype before storages did.
        let is_class = |suffix| class.is_some() && name.strip_suffix(suffix) == class;
        (is_class("Storage") || is_class("Tensor")).then_some(Global::StorageOf(Some(*dtype)))
    })
}

/// The reason for refusing an unknown name.
fn unknown(path: &str) -> String {
    let hint = match path {
        p if p.starts_with("__torch__") => {
            "it is of a TorchScript program; in PyTorch, save torch.jit.load(f).state_dict()"
        }
        p if p.starts_with("torch.") || p.starts_with("__main__.") => {
            "if the file holds a whole model or optimiser, save its state_dict() in PyTorch"
        }
        _ => "in PyTorch, save tensors, numbers, texts, lists and dicts alone",
    };
    format!(
        "the pickle names `{path}`, and loading that would run code, which Kiln never does; {hint}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_refused_or_unknown() {
        assert_eq!(global("torch", "float32"), Ok(Global::Dtype(DType::F32)));
        let float8 = Ok(Global::Dtype(DType::F8E5M2FNUZ));
        assert_eq!(global("torch", "float8_e5m2fnuz"), float8);
        let halves = Global::StorageOf(Some(DType::F16));
        assert_eq!(global("torch", "HalfStorage"), Ok(halves.clone()));
        assert_eq!(global("torch.cuda", "HalfTensor"), Ok(halves));
        assert_eq!(
            global("torch.storage", UNTYPED),
            Ok(Global::StorageOf(None))
        );
        assert_eq!(global("torch", "Tensor"), Ok(Global::TensorClass));
        for name in [
            "complex64",
            "ComplexFloatStorage",
            "float8_e8m0fnu",
            "qint8",
            "QUInt8Storage",
            "uint4",
        ] {
            assert!(
                matches!(global("torch", name), Ok(Global::Refused(_))),
                "{name}"
            );
        }
        for (module, name) in [
            ("os", "system"),
            ("builtins", "eval"),
            ("torch", "load"),
            ("os", "float32"),
        ] {
            let message = global(module, name).unwrap_err();
            assert!(message.contains(&format!("`{module}.{name}`")), "{message}");
        }
    }
}
