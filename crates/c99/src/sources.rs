//! The files: one function per entry, the kernels that it calls, and the weights.

use crate::emit::{Memory, ProgramEmitter, SHARED, Text, elements, identifier, memory, number};
use crate::error::{Error, Result};
use crate::prepare::run_prepare;
use crate::state::{States, move_prepare_into_run};
use kiln_base::{DType, Dim, Role};
use kiln_plan::{Plan, Site, SiteKind};
use kiln_runtime::Buffer;
use std::collections::BTreeSet;

/// A program that becomes a function.
#[derive(Clone, Debug)]
pub struct Program<'a> {
    /// The function's name, after the sources' prefix.
    pub name: &'a str,
    /// The plan that it runs.
    pub plan: &'a Plan,
    /// The values of the plan's symbols.
    pub symbols: &'a [i64],
    /// The source of each input of the plan.
    pub inputs: Vec<Input>,
    /// The destination of each output of the plan.
    pub outputs: Vec<Output>,
    /// The generator of its random numbers, if it draws some.
    pub draws: Option<Draws>,
}

/// The generator of a [`Program`] that draws random numbers: a state of two numbers, the seed and the count of drawn
/// numbers.
#[derive(Clone, Debug)]
pub struct Draws {
    /// The state's name.
    pub state: String,
    /// Its initial value.
    pub value: Buffer,
    /// The count of numbers that a call draws.
    pub count: i64,
}

/// An output of a [`Program`].
#[derive(Clone, Debug)]
pub enum Output {
    /// An output of the function, with this name.
    Named(String),
    /// The new value of a state, which must be an input of some program.
    State(String),
}

/// An input of a [`Program`].
#[derive(Clone, Debug)]
pub enum Input {
    /// An argument of each call, with this name.
    Argument(String),
    /// This constant.
    Fixed(Buffer),
    /// A state of this name, which the caller holds, with its initial value.
    State(String, Buffer),
    /// The key of random numbers that begin at this offset from the generator's position.
    Key(i64),
}

/// The storage of the weights.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Weights {
    /// In arrays up to a megabyte, else in a file.
    #[default]
    Auto,
    /// In arrays, in a C file of their own.
    Arrays,
    /// In a binary file. Every function gets a pointer to its contents, which may be mapped, read, or linked.
    File,
}

/// The maximum number of bytes of weights that [`Weights::Auto`] emits as arrays.
const MAX_ARRAY_BYTES: usize = 1 << 20;

/// C99 sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// The files by their names.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Emits programs as C sources whose names begin with `name`.
///
/// # Errors
/// If a part of them can't be emitted, or their prepared work fails.
pub fn emit(name: &str, programs: &[Program<'_>], weights: Weights) -> Result<Sources> {
    let name = identifier(name).to_ascii_lowercase();
    let emit = |in_file: bool| -> Result<Emission> {
        let mut emission = Emission::new(&name, in_file);
        programs.iter().try_for_each(|p| emission.emit_program(p))?;
        Ok(emission)
    };
    let emission = match weights {
        Weights::File => emit(true)?,
        Weights::Arrays => emit(false)?,
        Weights::Auto => {
            let arrays = emit(false)?;
            match arrays.emitter.weights.bytes() <= MAX_ARRAY_BYTES {
                true => arrays,
                false => emit(true)?,
            }
        }
    };
    emission.finish(&name)
}

struct Emission {
    emitter: ProgramEmitter,
    header: Text,
    entries: Text,
    states: States,
    /// The site of each error number.
    sites: Vec<Site>,
}

/// The parameters of an entry's function.
struct Params {
    /// Their declarations in C, and their names.
    declarations: Vec<(String, String)>,
    /// Their descriptions in the header's comment.
    descriptions: Vec<String>,
    names: BTreeSet<String>,
    reads_state: bool,
    writes_state: bool,
}

impl Params {
    fn new() -> Params {
        Params {
            declarations: Vec::new(),
            descriptions: Vec::new(),
            names: RESERVED.iter().map(|s| s.to_string()).collect(),
            reads_state: false,
            writes_state: false,
        }
    }

    /// Adds an array of this dtype and shape, and returns its name.
    fn add(
        &mut self,
        qualifier: &str,
        name: &str,
        (dtype, shape, symbols): (DType, &[Dim], &[i64]),
    ) -> Result<String> {
        let mut text = identifier(if name.is_empty() { "x" } else { name });
        while !self.names.insert(text.clone()) {
            text.push('_');
        }
        let sizes = shape.iter().map(|d| Ok(number(d, symbols)?.to_string()));
        let sizes: Vec<String> = sizes.collect::<Result<_>>()?;
        self.descriptions
            .push(format!("{text} {dtype}[{}]", sizes.join(", ")));
        self.declarations.push((
            format!("{qualifier}{} *{text}", memory(dtype)),
            text.clone(),
        ));
        Ok(text)
    }
}

/// The random numbers that a call draws.
struct DrawnNumbers {
    /// The generator's array in C.
    array: String,
    /// The count of numbers that are drawn.
    count: i64,
    key_count: usize,
}

impl DrawnNumbers {
    fn new(emission: &mut Emission, p: &Program<'_>, params: &mut Params) -> Result<DrawnNumbers> {
        let mut drawn = DrawnNumbers {
            array: String::new(),
            count: 0,
            key_count: 0,
        };
        if let Some(draws) = &p.draws {
            let (dtype, len) = (draws.value.dtype(), draws.value.len());
            if (dtype, len) != (DType::I64, 2) {
                let text = format!("`{}` is not a state of a generator", draws.state);
                return Err(Error::Damaged(text));
            }
            drawn.array =
                (emission.states).array(&mut emission.emitter, &draws.state, &draws.value)?;
            drawn.count = draws.count;
            params.writes_state = true;
        }
        Ok(drawn)
    }

    /// Emits the key of numbers at an offset from the generator's position, and returns its name.
    fn emit_key(&mut self, offset: i64, body: &mut Text) -> Result<String> {
        if self.array.is_empty() {
            return Err(Error::Damaged("a key without a generator".into()));
        }
        let (name, array) = (format!("key{}", self.key_count), &self.array);
        self.key_count += 1;
        let position = position_expression(array, offset);
        body.line(format!(
            "const int64_t {name}[2] = {{{array}[0], {position}}};"
        ));
        body.line(format!("(void){name};"));
        Ok(name)
    }

    /// Emits the advance of the generator.
    fn emit_advance(&self, body: &mut Text) {
        if self.count != 0 {
            let position = position_expression(&self.array, self.count);
            body.line(format!("{}[1] = {position};", self.array));
        }
    }
}

/// Returns a generator's position plus an offset, with wraparound.
fn position_expression(array: &str, offset: i64) -> String {
    format!(
        "(int64_t)((uint64_t){array}[1] + UINT64_C({}))",
        offset as u64
    )
}

/// Returns the results of *prepare*, with the indices of their buffers.
fn precompute(p: &Program<'_>) -> Result<Vec<(usize, Buffer)>> {
    let fixed = p.inputs.iter().map(|i| match i {
        Input::Fixed(value) => Some(value),
        Input::Argument(_) | Input::State(..) | Input::Key(_) => None,
    });
    let fixed: Vec<Option<&Buffer>> = fixed.collect();
    let variable_name = |i: &usize| match &p.inputs[*i] {
        Input::Argument(name) | Input::State(name, _) => Some(name),
        Input::Fixed(_) | Input::Key(_) => None,
    };
    if let Some(name) = prepare_reads(p.plan).iter().find_map(variable_name) {
        let text = format!("prepared work reads `{name}`, which each call passes");
        return Err(Error::Damaged(text));
    }
    run_prepare(p.plan, p.symbols, &fixed)
}

/// Names that a parameter can't have.
const RESERVED: &[&str] = &[
    "memory", "arena", "room", "state", "failed", "weights", "error", "auto", "break", "case",
    "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short",
    "signed", "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void",
    "volatile", "while",
];

impl Emission {
    fn new(name: &str, in_file: bool) -> Emission {
        Emission {
            emitter: ProgramEmitter::new(name, in_file),
            header: Text::default(),
            entries: Text::default(),
            states: States::default(),
            sites: Vec::new(),
        }
    }

    /// Emits a program. Each call runs *prepare* if that reads states.
    fn emit_program(&mut self, p: &Program<'_>) -> Result<()> {
        let is_state = |i: &usize| matches!(p.inputs[*i], Input::State(..));
        match prepare_reads(p.plan).iter().any(is_state) {
            true => {
                let plan = &move_prepare_into_run(p.plan);
                self.emit_with_constants(&Program { plan, ..p.clone() })
            }
            false => self.emit_with_constants(p),
        }
    }

    /// Emits a program whose *prepare* reads constants only.
    fn emit_with_constants(&mut self, p: &Program<'_>) -> Result<()> {
        let plan = p.plan;
        let mut locations = self.emitter.known(plan);
        let (mut params, mut body) = (Params::new(), Text::default());
        let mut draws = DrawnNumbers::new(self, p, &mut params)?;
        for (input, source) in plan.inputs.iter().zip(&p.inputs) {
            locations[input.buffer.0 as usize] = Some(match source {
                Input::Argument(name) => {
                    let typed = (input.dtype, &input.shape[..], p.symbols);
                    Memory::At(params.add("const ", name, typed)?)
                }
                Input::Fixed(value) => self.add_constant(value)?,
                Input::State(name, value) => {
                    params.reads_state = true;
                    Memory::At(self.states.array(&mut self.emitter, name, value)?)
                }
                Input::Key(offset) => Memory::At(draws.emit_key(*offset, &mut body)?),
            });
        }
        for (i, value) in precompute(p)? {
            locations[i] = Some(self.add_constant(&value)?);
        }
        params.descriptions.push("->".into());
        // An output that no kernel computes is copied to the caller's array. New values of states are staged in the
        // arena, and copied when the call succeeds.
        let (mut copies, mut commits, mut staged) = (Vec::new(), Vec::new(), 0);
        for (output, target) in plan.outputs.iter().zip(&p.outputs) {
            let elements = elements(&output.shape, p.symbols)?;
            let bytes = elements * output.dtype.size() as i64;
            let array = match target {
                Output::Named(name) => {
                    params.add("", name, (output.dtype, &output.shape, p.symbols))?
                }
                Output::State(name) => {
                    params.writes_state = true;
                    let ctype = memory(output.dtype);
                    let staging = format!("(({ctype} *)(void *)(arena + {staged}))");
                    staged += (bytes as usize).next_multiple_of(kiln_plan::memory::ALIGN);
                    commits.push((self.states.find(name)?, staging.clone(), bytes));
                    staging
                }
            };
            let buffer = output.buffer.0 as usize;
            match locations[buffer].clone() {
                None => locations[buffer] = Some(Memory::At(array)),
                Some(source) => copies.push((array, source, bytes)),
            }
        }
        let first_site = self.sites.len() as u32;
        let sites: Vec<u32> = (first_site..first_site + plan.sites.len() as u32).collect();
        self.sites.extend(plan.sites.iter().cloned());
        let peak = self
            .emitter
            .frame(plan, &locations, (p.symbols, &sites), "room", &mut body)?;
        for (array, source, bytes) in copies {
            let source = self.emitter.expression(&source)?;
            body.line(format!("memcpy({array}, {source}, {bytes});"));
        }
        if !commits.is_empty() || draws.count != 0 {
            body.open("if (error == 0)");
            draws.emit_advance(&mut body);
            for (state, staging, bytes) in commits {
                body.line(format!("memcpy({state}, {staging}, {bytes});"));
            }
            body.close();
        }
        self.emit_entry(p.name, &params, [staged, peak], body);
        Ok(())
    }

    /// Adds a constant to the weights.
    fn add_constant(&mut self, value: &Buffer) -> Result<Memory> {
        let bytes = value.to_bytes().map_err(Error::Prepare)?;
        Ok(Memory::Fixed(
            self.emitter.weights.add(value.dtype(), bytes),
        ))
    }

    /// Emits the function of an entry, and its declaration.
    fn emit_entry(&mut self, name: &str, params: &Params, [staged, peak]: [usize; 2], body: Text) {
        let function = format!("{}_{}", self.emitter.prefix, identifier(name));
        let macro_prefix = function.to_ascii_uppercase();
        let guard = format!("#ifdef {}_STATIC", self.emitter.prefix.to_ascii_uppercase());
        let description = params.descriptions.join(", ").replace(", ->, ", " -> ");
        let bytes = (staged + peak).max(kiln_plan::memory::ALIGN);
        let mut parameters: Vec<String> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        if self.emitter.in_file() {
            parameters.push("const void *weights_file".into());
            names.push("weights_file");
        }
        if params.reads_state || params.writes_state {
            let qualifier = if params.writes_state { "" } else { "const " };
            parameters.push(format!("{qualifier}{}_state *state", self.emitter.prefix));
            names.push("state");
        }
        parameters.extend(params.declarations.iter().map(|(text, _)| text.clone()));
        names.extend(params.declarations.iter().map(|(_, name)| &name[..]));
        let static_parameters = match parameters.is_empty() {
            true => "void".into(),
            false => parameters.join(", "),
        };
        parameters.push("void *memory".into());
        let h = &mut self.header;
        h.line(format!("/* {description}"));
        h.line(format!(
            " * `memory` has {macro_prefix}_ARENA bytes, aligned as malloc aligns, and is not read before it is written."
        ));
        h.line(" * Returns 0, or the number of an error. */");
        h.line(format!("#define {macro_prefix}_ARENA {bytes}"));
        h.line(format!("int {function}({});", parameters.join(", ")));
        h.line(&guard);
        h.line("/* The same in memory of its own. Not reentrant: calls from several threads, or from signals, must not");
        h.line(" * overlap. */");
        h.line(format!("int {function}_static({static_parameters});"));
        h.line("#endif");
        h.line("");
        let e = &mut self.entries;
        e.open(format!("int {function}({})", parameters.join(", ")));
        e.line("unsigned char *const arena = (unsigned char *)memory;");
        e.line(format!("unsigned char *const room = arena + {staged};"));
        if self.emitter.in_file() {
            e.line("const unsigned char *const weights = (const unsigned char *)weights_file;");
        }
        e.line("int error = 0;");
        e.line("int *const failed = &error;");
        e.block(&body.into_string());
        e.line("(void)room;");
        if params.reads_state || params.writes_state {
            e.line("(void)state;");
        }
        if self.emitter.in_file() {
            e.line("(void)weights;");
        }
        for (_, name) in &params.declarations {
            e.line(format!("(void){name};"));
        }
        e.line("(void)failed;");
        e.line("return error;");
        e.close();
        e.line("");
        e.line(guard);
        e.open(format!("int {function}_static({static_parameters})"));
        e.line(format!(
            "static union {{ unsigned char bytes[{macro_prefix}_ARENA]; double d; int64_t i; }} arena;"
        ));
        names.push("arena.bytes");
        e.line(format!("return {function}({});", names.join(", ")));
        e.close();
        e.line("#endif");
        e.line("");
    }

    fn finish(mut self, name: &str) -> Result<Sources> {
        let head = format!(
            "/* Made by kiln {} from compiled programs. */\n",
            env!("CARGO_PKG_VERSION")
        );
        let shared = SHARED.iter();
        let shared = shared.map(|(name, text)| (name.to_string(), text.as_bytes().to_vec()));
        let mut files: Vec<(String, Vec<u8>)> = shared.collect();
        let begins = self.states.define(&mut self.emitter)?;
        let states = self.states.declare(name, self.emitter.in_file());
        let (pointers, include) = self.add_weights(name, &head, &mut files);
        let errors = self.error_function(name);
        let in_file = self.emitter.in_file();
        let about = match in_file {
            true => format!(
                "/* Weights are the contents of {name}_weights.bin, aligned to 8 bytes at least: mapped, read or linked. */\n\n"
            ),
            false => String::new(),
        };
        let large = name.to_ascii_uppercase();
        let header = format!(
            "{head}#ifndef {large}_H\n#define {large}_H\n\n#include <stdint.h>\n\n#ifdef __cplusplus\nextern \"C\" {{\n#endif\n\n{about}{states}{}/* Returns the description of an error. */\nconst char *{name}_error(int number);\n\n#ifdef __cplusplus\n}}\n#endif\n\n#endif\n",
            self.header.into_string()
        );
        files.push((format!("{name}.h"), header.into_bytes()));
        let source = format!(
            "{head}#include \"kiln_c99.h\"\n#include \"{name}.h\"\n{include}\n{pointers}\n{}{begins}{}{errors}",
            self.emitter.functions.into_string(),
            self.entries.into_string(),
        );
        files.push((format!("{name}.c"), source.into_bytes()));
        files.sort();
        Ok(Sources { files })
    }

    /// Adds the files of the weights. Returns the macros for pointers into a binary file, and the `#include` of arrays.
    fn add_weights(
        &self,
        name: &str,
        head: &str,
        files: &mut Vec<(String, Vec<u8>)>,
    ) -> (String, String) {
        let weights = &self.emitter.weights;
        if self.emitter.in_file() {
            let (pointers, file) = weights.file(name);
            files.push((format!("{name}_weights.bin"), file));
            return (pointers, String::new());
        }
        let large = name.to_ascii_uppercase();
        let text = format!(
            "{head}#include <math.h>\n#include <stdint.h>\n#include \"{name}_weights.h\"\n\n{}",
            weights.defined(name)
        );
        files.push((format!("{name}_weights.c"), text.into_bytes()));
        let text = format!(
            "{head}#ifndef {large}_WEIGHTS_H\n#define {large}_WEIGHTS_H\n#include <stdint.h>\n{}\n#endif\n",
            weights.declared(name)
        );
        files.push((format!("{name}_weights.h"), text.into_bytes()));
        (String::new(), format!("#include \"{name}_weights.h\"\n"))
    }

    /// Returns the function that describes an error number.
    fn error_function(&self, name: &str) -> String {
        let mut errors = Text::default();
        errors.open(format!("const char *{name}_error(int number)"));
        errors.open("switch (number)");
        errors.line("case 0: return \"no error\";");
        for (i, site) in self.sites.iter().enumerate() {
            let text = match site.kind {
                SiteKind::IndexOutOfRange => "an index is out of range",
                SiteKind::DivisionByZero => "an integer is divided by zero",
                SiteKind::Custom => "a custom operator failed",
            };
            // A plan is untrusted: the name of its op must not become code of C.
            let op = identifier(&site.op);
            errors.line(format!("case {}: return \"{op}: {text}\";", i + 1));
        }
        errors.line("default: return \"no such error\";");
        errors.close_all(2);
        errors.into_string()
    }
}

/// Returns the inputs that *prepare* reads.
fn prepare_reads(plan: &Plan) -> BTreeSet<usize> {
    let touched: BTreeSet<_> = plan.prepare.iter().flat_map(|s| s.touched()).collect();
    let inputs = plan.inputs.iter().enumerate();
    let read = inputs.filter(|(_, i)| i.role == Role::Parameter && touched.contains(&i.buffer));
    read.map(|(i, _)| i).collect()
}
