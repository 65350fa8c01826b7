//! Models: loading, running, compiling, training.

use crate::data::{Data, Form, Outputs};
use crate::fault::{for_caller, invalid, unsupported};
use crate::loaded::{Kind, Loaded, Port, Weights};
use crate::missing::{host_operators, missing_operators};
use crate::proto::ModelProto;
use crate::scan;
use crate::scope::Scope;
use crate::value::{Traced, Value};
use kiln_nn::{Forward, Members, Module};
use kiln_tensor::memory::Budget;
use kiln_tensor::{
    AsTensor, Compiled, Device, DimSpec, Error, ErrorKind, Result, Spec, Tensor, Var, compile,
    no_grad, realize_first, set_device,
};
use prost::Message;
use std::collections::BTreeMap;
use std::io::Seek;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of programs that a model keeps, one for each list of input shapes.
const MAX_PROGRAMS: usize = 16;

/// Reads a model from a file. External data is read from files in the same folder.
///
/// # Errors
/// If the file can't be read or is damaged, with the node or tensor at fault. Operators that Kiln lacks are not an error
/// here: [`Model::unsupported`] lists them.
#[track_caller]
pub fn load(path: impl AsRef<Path>) -> Result<Model> {
    for_caller(|| {
        let path = path.as_ref();
        let named =
            |message: &dyn std::fmt::Display| invalid(format!("{}: {message}", path.display()));
        let mut file = std::fs::File::open(path).map_err(|e| named(&e))?;
        let length = file.metadata().map_err(|e| named(&e))?.len();
        let folder = match path.parent() {
            Some(p) if p != Path::new("") => p.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let in_parts = scan::read(&mut file, length);
        let model = match in_parts {
            Ok((model, spans)) => Model::new(model, Some(folder), Some(Weights { file, spans })),
            Err(_) => {
                file.rewind().map_err(|e| named(&e))?;
                let bytes = Budget::new().read_exact(&mut file, length, "the model");
                Model::read(bytes.map_err(|e| named(&e))?, Some(folder))
            }
        };
        model.map_err(|e| {
            let message = format!("{}: {}", path.display(), e.message());
            e.with_message(&message)
        })
    })
}

/// A model of ONNX.
///
/// ```no_run
/// use kiln_tensor::{DType, Tensor};
/// let model = kiln_onnx::load("resnet50.onnx")?;
/// let out = model.run([("input", Tensor::zeros([1, 3, 224, 224], DType::F32))])?;
/// println!("{}", out.get("output")?);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub struct Model {
    loaded: Loaded,
    /// The operators that Kiln lacks.
    missing: Vec<String>,
    programs: Mutex<Vec<(Signature, Program)>>,
}

/// Values in place of initial ones, by name.
type Replaced = Vec<(String, Data)>;

/// The dtypes, shapes and devices of inputs.
type Signature = Vec<Spec>;

#[derive(Clone)]
enum Program {
    /// With the meanings of its results.
    Compiled(Arc<(Compiled, Vec<Form>)>),
    /// Sizes depend on values: the graph is recorded for each run.
    Recorded,
}

impl Model {
    /// Reads a model from the bytes of its file.
    ///
    /// # Errors
    /// As [`load`].
    #[track_caller]
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Result<Model> {
        for_caller(|| Model::read(bytes.into(), None))
    }

    fn read(bytes: Vec<u8>, folder: Option<PathBuf>) -> Result<Model> {
        let model = ModelProto::decode(prost::bytes::Bytes::from(bytes));
        let model = model.map_err(|e| invalid(format!("this is not an ONNX model: {e}")))?;
        Model::new(model, folder, None)
    }

    fn new(model: ModelProto, folder: Option<PathBuf>, weights: Option<Weights>) -> Result<Model> {
        let loaded = Loaded::new(model, folder, weights)?;
        Ok(Model {
            missing: missing_operators(&loaded),
            loaded,
            programs: Mutex::default(),
        })
    }

    /// The inputs, without those that have an initial value.
    pub fn inputs(&self) -> &[Port] {
        &self.loaded.inputs
    }

    /// The inputs in the file's order, with those that have an initial value, which a run may replace.
    pub fn all_inputs(&self) -> impl Iterator<Item = &Port> {
        let order = |name: &str| {
            self.loaded
                .graph
                .input
                .iter()
                .position(|i| i.name() == name)
        };
        let mut ports: Vec<&Port> = self
            .loaded
            .inputs
            .iter()
            .chain(&self.loaded.initialised)
            .collect();
        ports.sort_by_key(|p| order(&p.name));
        ports.into_iter()
    }

    /// The outputs.
    pub fn outputs(&self) -> &[Port] {
        &self.loaded.outputs
    }

    /// The weights by name: initialisers of floats with at least 1 dim.
    pub fn parameters(&self) -> Vec<Var> {
        self.loaded.weights.iter().map(|w| w.var.clone()).collect()
    }

    /// The specs of the inputs. Sizes that the model leaves open are symbols, unless `sizes` has their names.
    ///
    /// # Errors
    /// If the model does not say the dtype or the number of dims of an input.
    #[track_caller]
    pub fn specs(&self, sizes: &[(&str, i64)]) -> Result<Vec<Spec>> {
        for_caller(|| {
            let fixed = |d: &DimSpec| match d {
                DimSpec::Symbol(name) => match sizes.iter().find(|(n, _)| n == name) {
                    Some((_, n)) => DimSpec::Known(*n),
                    None => d.clone(),
                },
                known => known.clone(),
            };
            let spec = |port: &Port| match (port.dtype, &port.dims) {
                (Some(dtype), Some(dims)) => Ok(Spec {
                    dtype,
                    dims: dims.iter().map(fixed).collect(),
                    device: Device::Cpu,
                }),
                _ => Err(invalid(format!(
                    "the input {:?} has no dtype or shape",
                    port.name
                ))),
            };
            self.loaded.inputs.iter().map(spec).collect()
        })
    }

    /// The operator sets that the model imports, with versions.
    pub fn opsets(&self) -> impl Iterator<Item = (&str, i64)> {
        let opsets = self.loaded.opsets.iter();
        opsets.map(|o| match o.domain() {
            "" => ("ai.onnx", o.version()),
            domain => (domain, o.version()),
        })
    }

    /// The operators of the model's graph, with how often each is applied.
    pub fn operators(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.loaded.graph.node {
            *counts.entry(node.op_type()).or_default() += 1;
        }
        counts
    }

    /// The operators that Kiln lacks, each with its version and the nodes that apply it.
    pub fn unsupported(&self) -> &[String] {
        &self.missing
    }

    /// The operators that are evaluated on the host, as those of text are, each with its version and the nodes that apply
    /// it. Operators on sizes, which are evaluated while the model is recorded, are not among them.
    pub fn on_host(&self) -> Vec<String> {
        host_operators(&self.loaded)
    }

    /// Runs the model. The first run with inputs of some shapes compiles a program for them.
    ///
    /// # Errors
    /// If an input is missing, unknown or does not fit, an operator is not supported, or the run fails.
    #[track_caller]
    pub fn run<N: AsRef<str>, D: Into<Data>>(
        &self,
        inputs: impl IntoIterator<Item = (N, D)>,
    ) -> Result<Outputs> {
        for_caller(|| {
            let (inputs, replaced) = self.order_inputs(inputs)?;
            let values = no_grad(|| match only_tensors(&inputs) {
                Some(tensors) if replaced.is_empty() => self.run_tensors(tensors),
                _ => self.run_recorded(inputs, replaced),
            })?;
            Ok(Outputs {
                names: self.loaded.outputs.iter().map(|o| o.name.clone()).collect(),
                values,
            })
        })
    }

    /// Puts inputs into the model's order, and those that replace initial values behind them.
    fn order_inputs<N: AsRef<str>, D: Into<Data>>(
        &self,
        inputs: impl IntoIterator<Item = (N, D)>,
    ) -> Result<(Vec<Data>, Replaced)> {
        let mut replaced = Vec::new();
        let mut in_order: Vec<Option<Data>> = vec![None; self.loaded.inputs.len()];
        for (name, data) in inputs {
            let name = name.as_ref();
            if let Some(port) = self.loaded.initialised.iter().find(|i| i.name == name) {
                let data = data.into();
                check_input(port, &data)?;
                replaced.push((name.to_string(), data));
                continue;
            }
            let Some(index) = self.loaded.inputs.iter().position(|i| i.name == name) else {
                let names: Vec<&str> = self.loaded.inputs.iter().map(|i| i.name.as_str()).collect();
                return Err(invalid(format!(
                    "the model has no input {name:?}; it takes {}",
                    names.join(", ")
                )));
            };
            in_order[index] = Some(data.into());
        }
        let with_port = in_order.into_iter().zip(&self.loaded.inputs);
        let mut ordered = Vec::new();
        for (data, port) in with_port {
            let data =
                data.ok_or_else(|| invalid(format!("the input {:?} is missing", port.name)))?;
            check_input(port, &data)?;
            ordered.push(data);
        }
        Ok((ordered, replaced))
    }

    fn run_tensors(&self, inputs: Vec<Tensor>) -> Result<Vec<Data>> {
        let signature: Signature = inputs.iter().map(Spec::like).collect::<Result<_>>()?;
        let program = match self.program(&signature) {
            Some(program) => program,
            None => self.compile_for(signature)?,
        };
        match program {
            Program::Compiled(program) => {
                let (f, forms) = &*program;
                let results = f.run(inputs)?.into_iter().zip(forms);
                results.map(|(t, form)| form.clone().data(t)).collect()
            }
            Program::Recorded => {
                let inputs = inputs.into_iter().map(Data::Tensor).collect();
                self.run_recorded(inputs, Vec::new())
            }
        }
    }

    fn program(&self, signature: &Signature) -> Option<Program> {
        let programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = programs.iter().find(|(s, _)| s == signature);
        cached.map(|(_, program)| program.clone())
    }

    fn compile_for(&self, signature: Signature) -> Result<Program> {
        let mut forms = None;
        let compiled = compile(signature.clone(), |inputs: Vec<Tensor>| {
            let (output_forms, tensors): (Vec<_>, Vec<_>) =
                self.record_forms(inputs)?.into_iter().unzip();
            forms = Some(output_forms);
            Ok(tensors)
        });
        let program = match (compiled, forms) {
            (Ok(f), Some(forms)) => Program::Compiled(Arc::new((f, forms))),
            (Err(e), _) if e.kind() != ErrorKind::ReadWhileCompiling => return Err(e),
            _ => Program::Recorded,
        };
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if programs.len() == MAX_PROGRAMS {
            programs.remove(0);
        }
        programs.push((signature, program.clone()));
        Ok(program)
    }

    fn run_recorded(&self, inputs: Vec<Data>, replaced: Replaced) -> Result<Vec<Data>> {
        let values = self.record_values(inputs, replaced)?;
        realize_first(values.iter().filter_map(Form::split).map(|(_, t)| t))?;
        values.into_iter().map(Data::from_value).collect()
    }

    /// Compiles the model for inputs of these specs, whose sizes may be symbolic. The function takes the inputs in the
    /// model's order and gives the outputs in theirs. Of text that is chosen from a list, such as labels of classes, it
    /// gives the i64 indices; of lists of maps, their values.
    ///
    /// # Errors
    /// If the specs don't fit, an operator is not supported, or sizes depend on values.
    #[track_caller]
    pub fn compile(&self, specs: impl IntoIterator<Item = Spec>) -> Result<Compiled> {
        let specs: Vec<Spec> = specs.into_iter().collect();
        for_caller(|| no_grad(|| compile(specs, |inputs: Vec<Tensor>| self.record(inputs))))
    }

    /// Records the model on inputs in its order, for training or as a part of another program. Gradients reach the
    /// inputs and [`Model::parameters`]. Outputs are given as [`Model::compile`] gives them.
    ///
    /// # Errors
    /// If an operator is not supported or does not apply, or an output lies on the host, as sequences do.
    #[track_caller]
    pub fn record(&self, inputs: impl IntoIterator<Item = impl AsTensor>) -> Result<Vec<Tensor>> {
        for_caller(|| {
            let inputs = inputs.into_iter().map(|t| t.as_tensor().into_owned());
            let results = self.record_forms(inputs)?.into_iter();
            Ok(results.map(|(_, t)| t).collect())
        })
    }

    fn record_forms(
        &self,
        inputs: impl IntoIterator<Item = Tensor>,
    ) -> Result<Vec<(Form, Tensor)>> {
        let inputs = inputs.into_iter().map(Data::Tensor).collect();
        let values = self.record_values(inputs, Vec::new())?.into_iter();
        let form = |(value, port): (Value, &Port)| {
            Form::split(&value).ok_or_else(|| {
                let message = format!("the output {:?} lies on the host", port.name);
                Error::at_caller(ErrorKind::ReadWhileCompiling, "onnx", message)
            })
        };
        values.zip(&self.loaded.outputs).map(form).collect()
    }

    fn record_values(&self, inputs: Vec<Data>, replaced: Replaced) -> Result<Vec<Value>> {
        if inputs.len() != self.loaded.inputs.len() {
            let expected = self.loaded.inputs.len();
            return Err(invalid(format!(
                "the model takes {expected} inputs, not {}",
                inputs.len()
            )));
        }
        if !self.missing.is_empty() {
            let list = self.missing.join("\n  ");
            return Err(unsupported(format!("Kiln lacks operators:\n  {list}")));
        }
        // Constants are made on the device of the inputs, or of the weights.
        let device = inputs.iter().find_map(Data::device);
        let device = device.or_else(|| Some(self.loaded.weights.first()?.var.device()));
        let _here = set_device(device.unwrap_or(Device::Cpu));
        let mut scope = Scope::new(&self.loaded);
        for (port, data) in self.loaded.inputs.iter().zip(inputs) {
            scope.set(&port.name, input_value(port, data));
        }
        for w in &self.loaded.weights {
            let value = Traced::weight(w.var.get(), w.first.clone());
            scope.set(&w.name, Value::Tensor(value));
        }
        for c in &self.loaded.constants {
            let value = Traced::constant(c.value.clone(), c.known.clone());
            scope.set(&c.name, Value::Tensor(value.packed_as(c.packed)));
        }
        for (name, text) in &self.loaded.texts {
            scope.set(name, text.clone().into());
        }
        for (name, data) in replaced {
            scope.set(&name, data.into());
        }
        let values = scope.graph(&self.loaded.graph)?;
        // Tensors of known elements are made here, where the device is set.
        values.iter().for_each(|v| drop(Form::split(v)));
        Ok(values)
    }
}

/// Returns the value of an input.
fn input_value(port: &Port, data: Data) -> Value {
    match (port.kind, data) {
        (Kind::Packed(packed), Data::Tensor(t)) => {
            Value::Tensor(Traced::from_tensor(t).packed_as(Some(packed)))
        }
        (_, data) => data.into(),
    }
}

fn check_input(port: &Port, data: &Data) -> Result<()> {
    match data {
        Data::Tensor(t) if !matches!(port.kind, Kind::Text | Kind::Map) => port.check(t),
        Data::Tensor(_) => Err(invalid(format!("the input {:?} must be {port}", port.name))),
        Data::Text(_) if port.kind != Kind::Text => Err(invalid(format!(
            "the input {:?} must be {port}, not text",
            port.name
        ))),
        Data::Maps(maps) => maps.check(),
        _ => Ok(()),
    }
}

/// The parameters are [`Model::parameters`].
impl Module for Model {
    fn as_module(&self) -> &dyn Module {
        self
    }

    fn members(&self) -> Members<'_> {
        let mut members = Members::new();
        for w in &self.loaded.weights {
            members.parameter(&w.name, &w.var);
        }
        members
    }

    fn name(&self) -> &str {
        "Model"
    }
}

/// For models of one input and one output.
impl Forward for Model {
    fn forward(&self, input: Tensor) -> Result<Tensor> {
        let mut outputs = self.record([input])?;
        match (outputs.pop(), outputs.is_empty()) {
            (Some(y), true) => Ok(y),
            _ => Err(invalid("the model has other than one output")),
        }
    }
}

/// Returns the tensors, if all are.
fn only_tensors(inputs: &[Data]) -> Option<Vec<Tensor>> {
    let tensor = |d: &Data| match d {
        Data::Tensor(t) => Some(t.clone()),
        _ => None,
    };
    inputs.iter().map(tensor).collect()
}
