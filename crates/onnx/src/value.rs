//! The values of a graph while it is recorded.

use crate::fault::invalid;
use crate::maps::Maps;
use crate::packed::Packed;
use crate::text::Text;
use kiln_base::Dim;
use kiln_tensor::{DType, Scalar, Tensor, default_device, stack};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

/// The maximum number of elements of a value that is known while recording.
pub(crate) const MAX_KNOWN: usize = 4096;

/// The value of a name.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// A tensor.
    Tensor(Traced),
    /// A tensor of text.
    Text(Text),
    /// A tensor of text, each chosen from a list by a computed i64 index.
    Chosen(Tensor, Arc<[String]>),
    /// A list of values.
    Sequence(Vec<Value>),
    /// A list of maps.
    Maps(Maps),
    /// An optional value without content; one with content is its content.
    Nothing,
}

/// A tensor, or the elements from which it is made if it is needed as one.
#[derive(Clone, Debug)]
pub(crate) struct Traced {
    tensor: Rc<OnceCell<Tensor>>,
    known: Option<Rc<Known>>,
    /// True for weights that may change, of which `known` holds the first elements.
    variable: bool,
    /// The integers that the tensor was dequantised from.
    quantized: Option<Rc<Quantized>>,
    /// The dtype of the numbers if Kiln holds them in a wider one.
    packed: Option<Packed>,
}

/// A tensor of small integers and its meaning, `(values − zero) · scale`.
#[derive(Clone, Debug)]
pub(crate) struct Quantized {
    pub values: Tensor,
    /// One number, or one for each position along `axis`.
    pub scale: Tensor,
    /// i32 numbers, as many as there are scales; none for 0.
    pub zero: Option<Tensor>,
    /// The number that stands for 0, if it is one and known.
    pub known_zero: Option<i64>,
    /// The axis of the scales, unless there is one scale.
    pub axis: Option<usize>,
}

/// The elements of a small tensor, known while recording: constants, and what is computed from shapes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub elements: Vec<Element>,
}

/// An element that is known while recording.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Element {
    /// An integer or a bool (0 or 1); a symbolic size if the program is compiled for any.
    Int(Dim),
    /// A float.
    Float(f64),
}

impl Element {
    /// Returns the number, unless it is symbolic.
    pub fn number(&self) -> Option<f64> {
        match self {
            Element::Int(d) => d.as_const().map(|n| n as f64),
            Element::Float(f) => Some(*f),
        }
    }
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Value {
        Value::Tensor(Traced::from_tensor(t))
    }
}

impl From<Text> for Value {
    fn from(t: Text) -> Value {
        Value::Text(t)
    }
}

impl From<Known> for Value {
    fn from(known: Known) -> Value {
        Value::Tensor(Traced {
            tensor: Rc::default(),
            known: Some(Rc::new(known)),
            variable: false,
            quantized: None,
            packed: None,
        })
    }
}

impl Traced {
    pub fn from_tensor(t: Tensor) -> Traced {
        Traced {
            tensor: Rc::new(OnceCell::from(t)),
            known: None,
            variable: false,
            quantized: None,
            packed: None,
        }
    }

    /// A tensor on the model's device, whose elements are known if they are few.
    pub fn constant(t: Tensor, known: Option<Known>) -> Traced {
        Traced {
            known: known.map(Rc::new),
            ..Traced::from_tensor(t.to(default_device()))
        }
    }

    /// A weight, whose elements are known to be these at first.
    pub fn weight(t: Tensor, known: Option<Known>) -> Traced {
        Traced {
            variable: true,
            known: known.map(Rc::new),
            ..Traced::from_tensor(t)
        }
    }

    /// True for weights that may change.
    pub fn is_variable(&self) -> bool {
        self.variable
    }

    /// A tensor that was dequantised from integers.
    pub fn dequantized(t: Tensor, from: Quantized) -> Traced {
        Traced {
            quantized: Some(Rc::new(from)),
            ..Traced::from_tensor(t)
        }
    }

    /// Returns the integers that the tensor was dequantised from.
    pub fn quantized(&self) -> Option<&Quantized> {
        self.quantized.as_deref()
    }

    /// The same tensor, of numbers of few bits.
    pub fn packed_as(self, packed: Option<Packed>) -> Traced {
        Traced { packed, ..self }
    }

    /// Returns the dtype of the numbers if Kiln holds them in a wider one.
    pub fn packed(&self) -> Option<Packed> {
        self.packed
    }

    /// Returns the elements, if they are known.
    pub fn known(&self) -> Option<&Rc<Known>> {
        self.known.as_ref()
    }

    /// Returns the tensor.
    pub fn tensor(&self) -> Tensor {
        let make_tensor = || match &self.known {
            Some(known) => known.tensor(),
            None => Tensor::from_error(invalid("a value has neither a tensor nor elements")),
        };
        self.tensor.get_or_init(make_tensor).clone()
    }
}

impl Known {
    /// A vector of integers.
    pub fn sizes(sizes: &[Dim]) -> Known {
        Known::vector(
            DType::I64,
            sizes.iter().cloned().map(Element::Int).collect(),
        )
    }

    pub fn vector(dtype: DType, elements: Vec<Element>) -> Known {
        Known {
            dtype,
            shape: vec![elements.len()],
            elements,
        }
    }

    /// An integer or truth value of rank 0.
    pub fn scalar(dtype: DType, n: impl Into<Dim>) -> Known {
        Known {
            dtype,
            shape: vec![],
            elements: vec![Element::Int(n.into())],
        }
    }

    /// Returns the elements with these bytes, unless they are many or of a dtype that sizes are not computed in.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Known> {
        if bytes.len() / dtype.size() > MAX_KNOWN {
            return None;
        }
        let ints = dtype.ints(bytes);
        if dtype == DType::U64 && ints.iter().any(|n| *n < 0) {
            return None;
        }
        let ints = ints.into_iter().map(|n| Element::Int(Dim::Const(n)));
        let floats = dtype.floats(bytes).into_iter().map(Element::Float);
        let elements = ints.chain(floats).collect();
        Some(Known {
            dtype,
            shape: shape.to_vec(),
            elements,
        })
    }

    /// Returns a tensor of the elements.
    fn tensor(&self) -> Tensor {
        let numbers: Option<Vec<f64>> = self.elements.iter().map(Element::number).collect();
        if let (Some([first, rest @ ..]), true) = (numbers.as_deref(), self.dtype.is_float())
            && rest.iter().all(|n| n == first)
        {
            return Tensor::full(&self.shape, *first, self.dtype);
        }
        match (numbers, self.dtype.is_float()) {
            (Some(numbers), true) => Tensor::from_slice(&numbers, &self.shape).to_dtype(self.dtype),
            (Some(_), false) => {
                let integers = self.integers().unwrap_or_default();
                Tensor::from_slice(&integers, &self.shape).to_dtype(self.dtype)
            }
            (None, _) => {
                let number = |e: &Element| match e {
                    Element::Float(f) => Tensor::scalar(*f).to_dtype(self.dtype),
                    Element::Int(d) => size_as_tensor(d).to_dtype(self.dtype),
                };
                stack(self.elements.iter().map(number), 0).reshape(&self.shape)
            }
        }
    }

    /// Returns the elements as integers, unless one is symbolic or a float.
    pub fn integers(&self) -> Option<Vec<i64>> {
        let integer = |e: &Element| match e {
            Element::Int(d) => d.as_const(),
            Element::Float(_) => None,
        };
        self.elements.iter().map(integer).collect()
    }

    /// Returns the elements as sizes, unless one is a float.
    pub fn dims(&self) -> Option<Vec<Dim>> {
        let dim = |e: &Element| match e {
            Element::Int(d) => Some(d.clone()),
            Element::Float(_) => None,
        };
        self.elements.iter().map(dim).collect()
    }
}

/// Returns a size as a number in i64: recorded as the length of a sequence, if it is symbolic.
pub(crate) fn size_as_tensor(d: &Dim) -> Tensor {
    match d.as_const() {
        Some(n) => Tensor::full((), n, DType::I64),
        None => Tensor::ones(vec![d.clone()], DType::I64).sum(()),
    }
}

/// Returns `0, 1, ..` below a size.
pub(crate) fn iota(size: &Dim) -> Tensor {
    match size.as_const() {
        Some(n) => Tensor::arange_dtype(0, n, 1, DType::I64),
        None => Tensor::arange(Scalar::Int(0), size.clone(), 1),
    }
}
