//! The definition of the command line.

use crate::spec::{self, Workload};
use crate::{Usage, groups};
use clap::builder::{
    NonEmptyStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser,
};
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, ValueHint, value_parser};
use clap_complete::Shell;
use kiln::DType;
use kiln_compiler::tune::{Precision, UnknownWord};
use std::ffi::OsStr;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kiln bench matmul:512x512x512                 how fast a product is, and what the machine could do
  kiln tune resnet50                            measures which algorithms are the fastest
  kiln cache list                               what was measured so far
  kiln devices                                  what programs can run on
  kiln inspect model.kiln                       what is in a package
  kiln run model.kiln --input x=x.npy           runs it
  kiln verify model.kiln                        compares its kernels with the reference
  kiln export-c model.kiln generated            prints it as C99 sources
  kiln onnx run model.onnx --input x=x.npy      runs an ONNX model
  kiln launch --nproc-per-node 4 train          runs a program as 4 processes

Exit codes: 0 done, 1 something failed or is damaged, 2 the command line is wrong.";

const BENCH_EXAMPLES: &str = "\
Examples:
  kiln bench                                    the groups pointwise, reductions and matmul
  kiln bench matmul:64..4096x768x768            a sweep: 64, 128, ... rows
  kiln bench conv2d:1,8x64x56x56:64x3x3:p1      a convolution, for 1 and 8 images
  kiln bench @resnet50 --html resnet50.html     a group, with a page of plots
  kiln bench resnet50 encoder-step --json       a network and a training step
  kiln bench conv2d:8x64x56x56:64x3x3:p1 --candidates
                                                every algorithm that it could be computed by
  kiln bench model.kiln --size batch=8          the entries of a package
  kiln bench --list                             everything that can be measured";

const TUNE_EXAMPLES: &str = "\
Examples:
  kiln tune resnet50                            measures what is not in the store yet
  kiln tune @mobilenet @transformer --budget 60
  kiln tune resnet50 --retry                    tries again what failed or did not answer
  kiln tune model.kiln                          tunes the programs of a package, and stores them as this machine's
  KILN_TUNE=on cargo run                        lets a program tune itself";

const CACHE_EXAMPLES: &str = "\
Examples:
  kiln cache list
  kiln cache show conv                          the records whose key contains \"conv\"
  kiln cache verify                             exits with 1 if lines of the file are damaged
  kiln cache merge other-machine.jsonl
  kiln cache clear matmul                       forgets the records whose key contains \"matmul\"";

const LAUNCH_EXAMPLES: &str = "\
Examples:
  kiln launch --nproc-per-node 4 target/release/train --epochs 3
  kiln launch --nproc-per-node 2 --local-rank train     also passes --local_rank=R
  kiln launch --backend nccl --nproc-per-node 8 --nnodes 2 --node-rank 1 --master-addr first train
                                                the second of two nodes with 8 GPUs each

Each line of the output begins with its rank. The program finds RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE. When
one process fails, the others are ended, and the exit code is its own.";

const DEVICES_EXAMPLES: &str = "\
Examples:
  kiln devices
  kiln devices --watch                          free memory and load of GPUs, every 2 seconds
  kiln devices --json                           for scripts; says too why there is no GPU";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  kiln doctor                                   CPU, threads, memory, GPUs, libraries, environment
  kiln doctor --json                            the same for scripts";

const INSPECT_EXAMPLES: &str = "\
Examples:
  kiln inspect model.kiln                       entries, states, memory
  kiln inspect model.kiln --json                its manifest";

const VERIFY_EXAMPLES: &str = "\
Examples:
  kiln verify model.kiln                        exits with 1 if a kernel is wrong
  kiln verify model.kiln --entry forward --size batch=8 --input images=x.npy";

const RUN_EXAMPLES: &str = "\
Examples:
  kiln run model.kiln --input images=x.npy --output scores=y.npy
  kiln run model.kiln --entry train_step --input rows=x.npy --input labels=y.npy --save later.kiln";

const EXPORT_C_EXAMPLES: &str = "\
Examples:
  kiln export-c model.kiln generated            entries that change nothing, for sizes of 1
  kiln export-c model.kiln generated --entry forward --size batch=8
  kiln export-c model.kiln generated --entry train_step --entry forward
                                                a training step, with a struct of what it changes
  kiln export-c model.kiln generated --weights file
                                                weights in a file that is mapped or linked";

const DIFF_EXAMPLES: &str = "\
Examples:
  kiln diff before.kiln after.kiln              exits with 1 if they differ";

const ONNX_EXAMPLES: &str = "\
Examples:
  kiln onnx inspect model.onnx                  inputs, outputs, operators, those that Kiln lacks
  kiln onnx run model.onnx --input x=x.npy      runs it
  kiln onnx verify model.onnx --size batch=2    exits with 1 if a kernel is wrong
  kiln onnx bench model.onnx --size batch=8     measures it
  kiln onnx convert model.onnx model.kiln       for sizes that stay open
The commands for packages take model.onnx too.";

/// The subject of a measurement.
#[derive(Clone)]
enum Subject {
    Workloads(Vec<Workload>),
    Package(PathBuf),
}

/// Parses workloads given as text, and packages; completions offer the names.
#[derive(Clone)]
struct Workloads;

impl TypedValueParser for Workloads {
    type Value = Subject;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Subject, clap::Error> {
        let path = PathBuf::from(value);
        if path.extension().is_some_and(|e| e == "kiln" || e == "onnx") {
            return Ok(Subject::Package(path));
        }
        let parser: fn(&str) -> Result<Vec<Workload>, spec::SpecError> = spec::parse;
        let workloads = parser.parse_ref(command, arg, value)?;
        Ok(Subject::Workloads(workloads))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |name: String, about: &'static str| PossibleValue::new(name).help(about);
        let groups = groups::GROUPS.iter();
        let groups = groups.map(move |(name, about, _)| value(format!("@{name}"), about));
        let models =
            kiln_models::workloads::names().map(move |(name, about)| value(name.into(), about));
        let ops = spec::ops();
        let ops = ops.map(move |op| value(format!("{op}:{}", spec::example(op)), spec::about(op)));
        Some(Box::new(groups.chain(models).chain(ops)))
    }
}

/// The requested device: `None` for the CPU, or the number of a GPU.
#[derive(Copy, Clone)]
pub(crate) struct Where(pub Option<u32>);

fn device(text: &str) -> Result<Where, String> {
    let number = || text.strip_prefix("cuda:")?.parse().ok();
    match (text, number()) {
        ("cpu", _) => Ok(Where(None)),
        (_, Some(n)) => Ok(Where(Some(n))),
        _ => Err("a device is cpu or cuda:N".into()),
    }
}

/// The dtypes of workloads.
const DTYPES: [(&str, DType); 4] = [
    ("f32", DType::F32),
    ("f64", DType::F64),
    ("f16", DType::F16),
    ("bf16", DType::BF16),
];

fn json() -> Arg {
    flag("json", "Prints JSON")
}

fn store() -> Arg {
    path(
        "store",
        "The store's file [default: KILN_TUNE_STORE, or the user's cache folder]",
    )
}

/// Adds the arguments that bench and tune have in common.
fn with_measure_args(command: Command) -> Command {
    let dtype = PossibleValuesParser::new(DTYPES.map(|(name, _)| name)).map(|text| {
        let known = DTYPES.into_iter().find(|(name, _)| *name == text);
        known.map_or(DType::F32, |(_, dtype)| dtype)
    });
    let precision = PossibleValuesParser::new(["exact", "default", "fast"])
        .try_map(|text| -> Result<Precision, UnknownWord> { text.parse() });
    command
        .arg(
            Arg::new("workload")
                .num_args(0..)
                .value_parser(Workloads)
                .hide_possible_values(true)
                .help("Ops with sizes, networks, training steps, @groups (see --list), or packages FILE.kiln"),
        )
        .arg(flag(
            "list",
            "Lists the ops, groups, networks and training steps",
        ))
        .arg(
            option("dtype", "Element type; steps autocast to f16 and bf16")
                .default_value("f32")
                .value_parser(dtype),
        )
        .arg(
            option("device", "cpu or cuda:N")
                .default_value("cpu")
                .value_parser(device),
        )
        .arg(
            option("threads", "Threads of the CPU engine")
                .value_parser(value_parser!(u32).range(1..=4096)),
        )
        .arg(option("precision", "Which approximations may be used").value_parser(precision))
        .arg(json())
}

/// Adds the time and the rounds of measurements.
fn with_time_args(command: Command) -> Command {
    command
        .arg(
            option(
                "time",
                "Milliseconds for each workload, or kernel with --candidates",
            )
            .default_value("500")
            .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(
            option(
                "rounds",
                "Rounds over all workloads, or candidates of a kernel",
            )
            .default_value("5")
            .value_parser(value_parser!(u32).range(1..1000)),
        )
}

fn bench() -> Command {
    with_time_args(entries(
        with_measure_args(Command::new("bench")),
        "An entry of a package [default: all]",
    ))
    .about("Measures ops, networks and training steps")
    .after_help(BENCH_EXAMPLES)
    .arg(flag(
        "no-peaks",
        "Does not measure what the device can do at most",
    ))
    .arg(flag(
        "candidates",
        "Times every candidate algorithm of each kernel instead, and remembers nothing",
    ))
    .arg(path("csv", "Writes a CSV file"))
    .arg(path("html", "Writes a page with a roofline and bars"))
}

fn tune() -> Command {
    with_measure_args(Command::new("tune"))
        .about("Measures the candidates of every kernel and remembers the fastest")
        .after_help(TUNE_EXAMPLES)
        .arg(store())
        .arg(
            option("budget", "Seconds for each workload")
                .default_value("60")
                .value_parser(value_parser!(u64)),
        )
        .arg(
            option(
                "workspace",
                "Most bytes that a candidate may need beside its arguments",
            )
            .value_parser(value_parser!(u64)),
        )
        .arg(path(
            "output",
            "Where the tuned package goes [default: in the place of the other]",
        ))
        .arg(flag(
            "retry",
            "Tries candidates of the store again that failed or did not answer",
        ))
}

fn cache() -> Command {
    let key = || {
        Arg::new("key")
            .value_parser(NonEmptyStringValueParser::new())
            .help("A part of the records' keys")
    };
    let files = Arg::new("file")
        .required(true)
        .num_args(1..)
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::FilePath)
        .help("Stores of machines with the same or other traits");
    Command::new("cache")
        .about("Looks after the store of measurements")
        .after_help(CACHE_EXAMPLES)
        .subcommand_required(true)
        .arg(store().global(true))
        .arg(json().global(true))
        .subcommand(
            Command::new("list")
                .about("A line a record: what was measured, and what is chosen by it")
                .after_help("Example:\n  kiln cache list matmul")
                .arg(key()),
        )
        .subcommand(
            Command::new("show")
                .about("Every candidate and its times")
                .after_help("Example:\n  kiln cache show \"conv f32\"")
                .arg(key()),
        )
        .subcommand(
            Command::new("verify")
                .about("Checks the file; exits with 1 if lines are damaged or it can't be read")
                .after_help("Example:\n  kiln cache verify --store other-machine.jsonl"),
        )
        .subcommand(
            Command::new("merge")
                .about("Takes the records of other stores; exits with 1 if one holds none")
                .after_help("Example:\n  kiln cache merge other-machine.jsonl third-machine.jsonl")
                .arg(files),
        )
        .subcommand(
            Command::new("clear")
                .about("Forgets records")
                .after_help("Examples:\n  kiln cache clear matmul\n  kiln cache clear --all")
                .arg(key())
                .arg(flag("all", "Forgets all records"))
                .group(ArgGroup::new("what").args(["key", "all"]).required(true)),
        )
}

fn launch() -> Command {
    let text = |name: &'static str, help: &'static str, usual: &'static str| {
        option(name, help).value_name(usual).default_value(usual)
    };
    Command::new("launch")
        .about("Runs a program as several processes, with torchrun's words")
        .after_help(LAUNCH_EXAMPLES)
        .arg(
            option("nproc-per-node", "The number of processes")
                .alias("nproc_per_node")
                .value_name("N")
                .default_value("1")
                .value_parser(value_parser!(u32).range(1..)),
        )
        .arg(
            option(
                "nnodes",
                "The number of nodes, of which this command starts one, with `--backend nccl`",
            )
            .value_name("N")
            .default_value("1")
            .value_parser(value_parser!(u32).range(1..)),
        )
        .arg(
            option("node-rank", "This node among them, with `--backend nccl`")
                .alias("node_rank")
                .value_name("N")
                .default_value("0")
                .value_parser(value_parser!(u32)),
        )
        .arg(
            option(
                "backend",
                "The backend of the program: `mpiexec` starts its processes for mpi, this command for nccl",
            )
            .value_name("BACKEND")
            .default_value("mpi")
            .value_parser(["mpi", "nccl"]),
        )
        .arg(
            text(
                "master-addr",
                "The variable MASTER_ADDR of the program",
                "127.0.0.1",
            )
            .alias("master_addr"),
        )
        .arg(
            text(
                "master-port",
                "The variable MASTER_PORT of the program",
                "29500",
            )
            .alias("master_port"),
        )
        .arg(flag("local-rank", "Gives the program `--local_rank=R` too"))
        .arg(
            Arg::new("program")
                .help("The program, and its arguments")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_hint(ValueHint::CommandWithArguments)
                .value_parser(value_parser!(std::ffi::OsString)),
        )
}

fn file(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .required(true)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .value_hint(ValueHint::FilePath)
        .help(help)
}

fn inspect() -> Command {
    Command::new("inspect")
        .about("Says what is in a package")
        .after_help(INSPECT_EXAMPLES)
        .arg(file("file", "The package"))
        .arg(json())
}

/// An option that may be given several times.
fn repeated(name: &'static str, help: &'static str, value: &'static str) -> Arg {
    let arg = option(name, help).value_name(value);
    arg.action(ArgAction::Append)
}

fn onnx() -> Command {
    let with_file = |command: Command| command.arg(file("file", "The model"));
    let size = || repeated("size", "A size that the model leaves open", "NAME=N");
    let verify = entries(Command::new("verify"), "The entry, forward");
    let bench = entries(Command::new("bench"), "The entry, forward");
    Command::new("onnx")
        .about("Inspects, runs, verifies, measures and converts ONNX models")
        .after_help(ONNX_EXAMPLES)
        .subcommand_required(true)
        .subcommand(
            with_file(Command::new("inspect"))
                .about("Says what is in a model")
                .arg(json()),
        )
        .subcommand(
            with_file(Command::new("run"))
                .about("Runs a model")
                .arg(repeated(
                    "input",
                    "An input and its file",
                    "NAME=FILE.npy|.pb",
                ))
                .arg(repeated(
                    "output",
                    "An output and the file that gets it; printed if there are none",
                    "[NAME=]FILE.npy|.pb",
                )),
        )
        .subcommand(
            with_file(verify)
                .about("Compares every kernel of a model with the reference")
                .arg(repeated("input", "An input and its file", "NAME=FILE.npy"))
                .arg(json()),
        )
        .subcommand(
            with_time_args(with_file(bench))
                .about("Measures a model")
                .arg(json()),
        )
        .subcommand(
            with_file(Command::new("convert"))
                .about("Writes a model as a package")
                .arg(file("package", "The package to write"))
                .arg(size()),
        )
}

/// Adds the options that select entries of a package and their sizes.
fn entries(command: Command, usual: &'static str) -> Command {
    command.arg(repeated("entry", usual, "NAME")).arg(repeated(
        "size",
        "A size that entries leave open",
        "NAME=N",
    ))
}

fn verify() -> Command {
    let command = Command::new("verify")
        .about("Compares every kernel of a package with the reference")
        .after_help(VERIFY_EXAMPLES)
        .arg(file("file", "The package"));
    entries(command, "An entry [default: all]")
        .arg(repeated(
            "input",
            "An input and NumPy's file of it [default: random numbers]",
            "NAME=FILE.npy",
        ))
        .arg(json())
}

fn run() -> Command {
    Command::new("run")
        .about("Runs an entry of a package")
        .after_help(RUN_EXAMPLES)
        .arg(file("file", "The package"))
        .arg(option("entry", "The entry [default: the first]").value_name("NAME"))
        .arg(repeated(
            "input",
            "An input and NumPy's file of it",
            "NAME=FILE.npy",
        ))
        .arg(repeated(
            "output",
            "An output and the file that gets it; printed if there are none",
            "[NAME=]FILE.npy",
        ))
        .arg(path(
            "save",
            "Writes the package with its state behind the run",
        ))
}

fn export_c() -> Command {
    let command = Command::new("export-c")
        .about("Prints entries of a package as C99 sources that need libm alone")
        .after_help(EXPORT_C_EXAMPLES)
        .arg(file("file", "The package"))
        .arg(
            file("folder", "Where the sources go")
                .value_name("DIR")
                .value_hint(ValueHint::DirPath),
        );
    entries(
        command,
        "An entry [default: all that change no state and draw no random numbers]",
    )
    .arg(
        option(
            "name",
            "What names in the sources begin with [default: the file's]",
        )
        .value_name("NAME"),
    )
    .arg(
        option(
            "weights",
            "Where weights are; auto makes arrays of up to 1 MiB",
        )
        .default_value("auto")
        .value_parser(["auto", "arrays", "file"]),
    )
    .arg(json())
}

fn diff() -> Command {
    Command::new("diff")
        .about("Compares two packages")
        .after_help(DIFF_EXAMPLES)
        .arg(file("file", "A package"))
        .arg(file("other", "Another one"))
        .arg(json())
}

/// The definition of the command line.
pub fn command() -> Command {
    Command::new("kiln")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Benchmarks and tunes Kiln's kernels on this machine, and runs packages")
        .after_help(EXAMPLES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(bench())
        .subcommand(tune())
        .subcommand(cache())
        .subcommand(inspect())
        .subcommand(run())
        .subcommand(verify())
        .subcommand(export_c())
        .subcommand(diff())
        .subcommand(onnx())
        .subcommand(launch())
        .subcommand(
            Command::new("devices")
                .about("Lists the devices that programs can run on")
                .after_help(DEVICES_EXAMPLES)
                .arg(json())
                .arg(
                    option("watch", "Lists them again after as many seconds, until it is stopped")
                        .value_name("SECONDS")
                        .num_args(0..=1)
                        .default_missing_value("2")
                        .value_parser(value_parser!(u64)),
                ),
        )
        .subcommand(
            Command::new("doctor")
                .about("Reports what results and speed depend on, for bug reports")
                .after_help(DOCTOR_EXAMPLES)
                .arg(json()),
        )
        .subcommand(
            Command::new("completions")
                .about("Prints completions for a shell")
                .after_help("Example:\n  kiln completions bash > ~/.local/share/bash-completion/completions/kiln")
                .arg(Arg::new("shell").required(true).value_parser(value_parser!(Shell))),
        )
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

fn option(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help)
}

fn path(name: &'static str, help: &'static str) -> Arg {
    let arg = option(name, help)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf));
    arg.value_hint(ValueHint::FilePath)
}

/// The named workloads; without any, the usual ones, given as text.
pub(crate) fn workloads(m: &ArgMatches, usual: &[&str]) -> Result<Vec<Workload>, spec::SpecError> {
    let subjects = m.get_many::<Subject>("workload").into_iter().flatten();
    let subjects = subjects.filter_map(|g| match g {
        Subject::Workloads(all) => Some(all.clone()),
        Subject::Package(_) => None,
    });
    let subjects: Vec<Workload> = subjects.flatten().collect();
    if !subjects.is_empty() {
        return Ok(subjects);
    }
    let usual = usual.iter().map(|text| spec::parse(text));
    Ok(usual.collect::<Result<Vec<_>, _>>()?.concat())
}

/// The packages given in place of workloads. An error if packages and workloads are mixed.
pub(crate) fn packages(m: &ArgMatches) -> Result<Vec<PathBuf>, Usage> {
    let subjects = m.get_many::<Subject>("workload").into_iter().flatten();
    let count = subjects.clone().count();
    let packages: Vec<PathBuf> = subjects
        .filter_map(|g| match g {
            Subject::Package(path) => Some(path.clone()),
            Subject::Workloads(_) => None,
        })
        .collect();
    match packages.is_empty() || packages.len() == count {
        true => Ok(packages),
        false => Err(Usage(
            "packages are measured apart from other workloads".into(),
        )),
    }
}
