//! The content of a model file.

use crate::check;
use crate::fault::invalid;
use crate::nodes::plain_domain;
use crate::packed::Packed;
use crate::proto::{
    DataType, Dimension, DimensionValue, FunctionProto, GraphProto, ModelProto, OperatorSetIdProto,
    TensorProto, TypeProto, TypeValue,
};
use crate::scan::Span;
use crate::tensor;
use crate::text::Text;
use crate::value::Known;
use kiln_tensor::{DType, DimSpec, Fact, Result, Spec, Tensor, Var};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;

/// The maximum number of elements of a weight whose first elements are known while recording.
const MAX_KNOWN_OF_WEIGHT: usize = 64;

/// The content of a model file, with its weights as cells.
pub(crate) struct Loaded {
    pub graph: GraphProto,
    pub opsets: Vec<OperatorSetIdProto>,
    functions: HashMap<(String, String, String), FunctionProto>,
    pub folder: Option<PathBuf>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// The inputs that have initial values.
    pub initialised: Vec<Port>,
    pub weights: Vec<Weight>,
    pub constants: Vec<Constant>,
    pub texts: Vec<(String, Text)>,
}

/// The file of a model, whose large initial values are read when their tensors are made.
pub(crate) struct Weights {
    pub file: File,
    /// The bytes of each initialiser that are still to be read.
    pub spans: Vec<Option<Span>>,
}

/// An initial value that may be trained.
pub(crate) struct Weight {
    pub name: String,
    pub var: Var,
    /// The elements at first, if they are few.
    pub first: Option<Known>,
}

/// An initial value that stays as it is.
pub(crate) struct Constant {
    pub name: String,
    pub value: Tensor,
    /// The elements, if they are few.
    pub known: Option<Known>,
    /// The dtype of the numbers if Kiln holds them in a wider one.
    pub packed: Option<Packed>,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// The name.
    pub name: String,
    /// The dtype, if it is a tensor and the model says it.
    pub dtype: Option<DType>,
    /// The sizes, if the model says how many dims there are. An unknown size without a name has that of its place, as `x.0`.
    pub dims: Option<Vec<DimSpec>>,
    /// The kind of its values.
    pub kind: Kind,
}

/// The kind of an input or output.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor.
    Tensor,
    /// A tensor of numbers of few bits, which Kiln holds in a wider dtype.
    Packed(Packed),
    /// A tensor of text.
    Text,
    /// A sequence.
    Sequence,
    /// A map.
    Map,
    /// An optional value.
    Optional,
}

impl Loaded {
    /// Checks a model and reads its initial values.
    pub fn new(
        model: ModelProto,
        folder: Option<PathBuf>,
        mut stored: Option<Weights>,
    ) -> Result<Loaded> {
        let mut graph = model
            .graph
            .ok_or_else(|| invalid("the model has no graph"))?;
        check::check_graph(&graph, &model.functions)?;
        let function = |f: FunctionProto| {
            let key = (
                plain_domain(f.domain()).to_string(),
                f.name().to_string(),
                f.overload().to_string(),
            );
            (key, f)
        };
        let initial: HashSet<&str> = graph.initializer.iter().map(TensorProto::name).collect();
        let ports = graph
            .input
            .iter()
            .map(|i| Port::new(i.name(), i.r#type.as_ref()));
        let (initialised, inputs) = ports.partition(|p: &Port| initial.contains(p.name.as_str()));
        let outputs = graph.output.iter();
        let outputs = outputs
            .map(|o| Port::new(o.name(), o.r#type.as_ref()))
            .collect();
        let (mut weights, mut constants, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for (i, t) in std::mem::take(&mut graph.initializer)
            .into_iter()
            .enumerate()
        {
            let name = t.name().to_string();
            if tensor::is_text(&t) {
                texts.push((name, tensor::read_text(&t)?));
                continue;
            }
            let span = stored
                .as_mut()
                .and_then(|s| Some((&mut s.file, s.spans[i]?)));
            let (value, known) = match span {
                Some((file, span)) => (tensor::read_stored(&t, file, span)?, None),
                None => tensor::read_constant(&t, folder.as_deref())?,
            };
            value.check()?;
            let packed = tensor::packed(t.data_type().into());
            if value.dtype().is_float() && value.ndim() > 0 && packed.is_none() {
                let example = known.filter(|k| k.elements.len() <= MAX_KNOWN_OF_WEIGHT);
                let var = Var::parameter(value)?;
                var.set_name(&name);
                weights.push(Weight {
                    name,
                    var,
                    first: example,
                });
            } else {
                constants.push(Constant {
                    name,
                    value,
                    known,
                    packed,
                });
            }
        }
        Ok(Loaded {
            graph,
            opsets: model.opset_import,
            functions: model.functions.into_iter().map(function).collect(),
            folder,
            inputs,
            outputs,
            initialised,
            weights,
            constants,
            texts,
        })
    }

    /// Returns the model's own function for an operator.
    pub fn function(&self, domain: &str, name: &str, overload: &str) -> Option<&FunctionProto> {
        if self.functions.is_empty() {
            return None;
        }
        let key = (domain.to_string(), name.to_string(), overload.to_string());
        self.functions.get(&key)
    }

    /// The model's own functions.
    pub fn functions(&self) -> impl Iterator<Item = &FunctionProto> {
        self.functions.values()
    }
}

impl Port {
    pub(crate) fn new(name: &str, kind: Option<&TypeProto>) -> Port {
        let tensor = match kind.and_then(|t| t.value.as_ref()) {
            Some(TypeValue::Tensor(t)) => Some(t),
            _ => None,
        };
        let dim = |(i, d): (usize, &Dimension)| match &d.value {
            Some(DimensionValue::Known(n)) if *n >= 0 => DimSpec::Known(*n),
            Some(DimensionValue::Symbol(p)) if !p.is_empty() => DimSpec::Symbol(p.clone()),
            _ => DimSpec::Symbol(format!("{name}.{i}")),
        };
        let shape = tensor.and_then(|t| t.shape.as_ref());
        let number = tensor.map_or(0, |t| t.elem_type());
        let packed = tensor::packed(number.into());
        Port {
            name: name.to_string(),
            kind: match kind.and_then(|t| t.value.as_ref()) {
                Some(TypeValue::Sequence(_)) => Kind::Sequence,
                Some(TypeValue::Optional(_)) => Kind::Optional,
                Some(TypeValue::Map(_)) => Kind::Map,
                _ if number == DataType::String as i32 => Kind::Text,
                _ => packed.map_or(Kind::Tensor, Kind::Packed),
            },
            dtype: match packed {
                Some(packed) => Some(packed.storage()),
                None => tensor::dtype(number.into()).ok(),
            },
            dims: shape.map(|s| s.dim.iter().enumerate().map(dim).collect()),
        }
    }

    /// Checks the dtype and the number of dims of an input, and the sizes that the model names.
    pub fn check(&self, t: &Tensor) -> Result<()> {
        t.check()?;
        let dtype_fits = self.dtype.is_none_or(|d| d == t.dtype());
        let dims_fit = self.dims.as_ref().is_none_or(|dims| {
            dims.len() == t.ndim()
                && dims.iter().zip(t.dims()).all(|(want, d)| match want {
                    DimSpec::Known(n) => d.as_const().is_none_or(|d| d == *n),
                    DimSpec::Symbol(_) => true,
                })
        });
        if dtype_fits && dims_fit {
            return Ok(());
        }
        let actual = Fact::new(t.dtype(), t.dims().iter().cloned());
        Err(invalid(format!(
            "the input {:?} must be {self}, not {actual}",
            self.name
        )))
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.dtype, &self.dims) {
            _ if self.kind == Kind::Text => write!(f, "text"),
            _ if self.kind == Kind::Sequence => write!(f, "a sequence"),
            _ if self.kind == Kind::Map => write!(f, "a map"),
            (Some(dtype), Some(dims)) => {
                let spec = Spec {
                    dtype,
                    dims: dims.clone(),
                    device: kiln_tensor::Device::Cpu,
                };
                write!(f, "{spec}")
            }
            (Some(dtype), None) => write!(f, "{dtype}[..]"),
            (None, _) => write!(f, "of any type"),
        }
    }
}
