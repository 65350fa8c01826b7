//! The cost of a package: `cargo run --release -p kiln-package --example measure -- FILE [ENTRY] [--trusted]
//! [--twice]`.
//!
//! With `--pack` it only stores weights in the file, packed for the current level. Else it runs an entry on zeros,
//! with 1 for each symbolic size, and prints the time to open it and to the first result, the time of later runs, and
//! the memory of the process; with `--twice` also the memory of two such processes.

use kiln_package::{Buffer, Features, Options, Package, Size};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let trusted = arguments.iter().any(|a| a == "--trusted");
    let twice = arguments.iter().any(|a| a == "--twice");
    let waits = arguments.iter().any(|a| a == "--wait");
    let packs = arguments.iter().any(|a| a == "--pack");
    arguments.retain(|a| !a.starts_with("--"));
    let file = arguments
        .first()
        .ok_or("usage: measure FILE [ENTRY] [--trusted] [--twice] [--pack]")?;
    if packs {
        let mut contents = Package::open(file)?.contents()?;
        contents.packed = vec![Features::current()?];
        return Ok(contents.save(file)?);
    }
    let name = arguments.get(1).map_or("forward", |a| a);

    let ms = |since: Instant| since.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    let package = Options::new().trusted(trusted).open(file)?;
    let opened = ms(start);
    let entry = package.entry(name)?;
    let loaded = ms(start);
    let size = |s: &Size| match s {
        Size::Known(n) => *n,
        Size::Symbolic(_) => 1,
    };
    let inputs = entry.interface().inputs.iter();
    let inputs =
        inputs.map(|i| Buffer::zeros(i.dtype, &i.shape.iter().map(size).collect::<Vec<_>>()));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    entry.run(inputs.clone())?;
    let first = ms(start);
    let mut later: Vec<f64> = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        entry.run(inputs.clone())?;
        later.push(ms(start));
    }
    let second = later[0];
    later.sort_by(f64::total_cmp);
    println!("opened {opened:.1} ms, program loaded {loaded:.1} ms, first result {first:.1} ms");
    println!(
        "second run {second:.1} ms, median of later runs {:.1} ms",
        later[later.len() / 2]
    );
    println!(
        "first result costs {:.1} ms more than a later run",
        first - later[later.len() / 2]
    );
    let sizes: Vec<(&str, i64)> = entry
        .interface()
        .symbols
        .iter()
        .map(|s| (&s.name[..], 1))
        .collect();
    let memory = entry.memory(&sizes)?;
    let mb = |bytes: usize| bytes as f64 / 1e6;
    println!(
        "weights {:.1} MB, planned peak {:.1} MB, packed {:.1} MB (by way of {:.1} MB), outputs {:.2} MB",
        mb(memory.weights),
        mb(memory.run.peak),
        mb(memory.run.prepared),
        mb(memory.run.prepare_peak),
        mb(memory.run.outputs)
    );
    // Only on systems that report it.
    for file in ["status", "smaps_rollup"] {
        figures("self", file);
    }
    if twice {
        let mut other = Command::new(std::env::current_exe()?)
            .args([file, name, "--wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(other.stdout.take().ok_or("no output")?).lines();
        said.map_while(Result::ok).find(|line| line == READY);
        println!("beside another process:");
        figures("self", "smaps_rollup");
        figures(&other.id().to_string(), "smaps_rollup");
        drop(other.stdin.take());
        other.wait()?;
    }
    if waits {
        println!("{READY}");
        std::io::stdin().read_line(&mut String::new())?;
    }
    Ok(())
}

/// The line that a process prints after its run.
const READY: &str = "ready";

/// Prints a process's memory.
fn figures(process: &str, file: &str) {
    let text = std::fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    let wanted = ["VmHWM", "VmRSS", "RssAnon", "RssFile", "Pss:", "Pss_Anon"];
    let shown = |line: &&str| wanted.iter().any(|w| line.starts_with(w));
    text.lines()
        .filter(shown)
        .for_each(|line| println!("{line}"));
}
