//! Dumps: the results of every stage in files, where the environment asks for them.

use crate::explain::why_not;
use crate::{CompileError, Explain, Stages};
use kiln_codegen::tile_text;
use kiln_ir::Graph;
use kiln_plan::Kernel;
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// The folder that compilations are dumped into.
const VARIABLE: &str = "KILN_DUMP";

/// The dump of one compilation: a folder of its own, named by the process and the compilation, with a
/// file for each stage. Each file appears whole, when its stage is done.
pub(crate) struct Dump {
    folder: Option<PathBuf>,
    files: usize,
}

impl Dump {
    /// Returns a dump into a new folder, or none if the environment names no folder.
    pub(crate) fn new() -> Result<Dump, CompileError> {
        static COMPILATIONS: AtomicU64 = AtomicU64::new(0);
        let Some(parent) = std::env::var_os(VARIABLE).filter(|p| !p.is_empty()) else {
            return Ok(Dump {
                folder: None,
                files: 0,
            });
        };
        let parent = PathBuf::from(parent);
        let process = std::process::id();
        loop {
            let n = COMPILATIONS.fetch_add(1, Ordering::Relaxed);
            let folder = parent.join(format!("{process}-{n:04}"));
            let result =
                std::fs::create_dir_all(&parent).and_then(|()| std::fs::create_dir(&folder));
            match result {
                Ok(()) => {
                    return Ok(Dump {
                        folder: Some(folder),
                        files: 0,
                    });
                }
                // Left by an earlier process of this number.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && parent.is_dir() => {}
                Err(e) => return Err(failed(&folder, &e)),
            }
        }
    }

    pub(crate) fn on(&self) -> bool {
        self.folder.is_some()
    }

    /// Writes a stage's file, numbered in the order of the stages.
    pub(crate) fn stage(
        &mut self,
        name: &str,
        text: impl FnOnce() -> String,
    ) -> Result<(), CompileError> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let path = folder.join(format!("{:02}-{name}", self.files));
        self.files += 1;
        let text = text();
        let written = kiln_base::file::replace(&path, |f| f.write_all(text.as_bytes()));
        written.map_err(|e: std::io::Error| failed(&path, &e))
    }

    /// Writes a graph, with lines.
    pub(crate) fn graph(&mut self, name: &str, graph: &Graph) -> Result<(), CompileError> {
        self.stage(&format!("{name}.txt"), || format!("{graph:#}"))
    }

    /// Writes the stages after the passes.
    pub(crate) fn lowered(
        &mut self,
        stages: &Stages,
        explain: &Explain,
    ) -> Result<(), CompileError> {
        if !self.on() {
            return Ok(());
        }
        self.stage("groups.txt", || groups(stages))?;
        self.stage("kernel-ir.txt", || {
            let (tasks, machine) = (stages.program.tasks.iter(), &stages.program.machine);
            code(tasks.map(|t| (t.work.name(), t.work.kir_text(machine))))
        })?;
        self.stage("kernels.txt", || {
            let launches = stages.sequence.launches.iter();
            code(launches.map(|l| {
                let text = match &*l.kernel {
                    Kernel::Cuda(k) => Some(k.source()),
                    other => tiles(other),
                };
                (l.kernel.name(), text)
            }))
        })?;
        self.stage("memory.txt", || memory(explain))?;
        self.stage("explain.txt", || explain.to_string())?;
        self.stage("explain.html", || explain.to_html())?;
        self.stage("graph.dot", || explain.to_dot())
    }
}

fn failed(path: &std::path::Path, e: &std::io::Error) -> CompileError {
    CompileError::Dump(format!("{VARIABLE}: {}: {e}", path.display()))
}

fn groups(stages: &Stages) -> String {
    let mut out = String::new();
    for (i, launch) in stages.sequence.launches.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{i}: {}", launch.kernel.name());
        for id in &launch.nodes {
            let _ = writeln!(out, "  {}", stages.optimized.line(*id));
        }
        for why in why_not(&stages.program, launch) {
            let _ = writeln!(out, "  not fused: {why}");
        }
    }
    out
}

fn code<'a>(list: impl Iterator<Item = (&'a str, Option<String>)>) -> String {
    let mut out = String::new();
    for (i, (name, text)) in list.enumerate() {
        if let Some(text) = text {
            let _ = writeln!(out, "# {i}: {name}\n{}\n", text.trim_end());
        }
    }
    out
}

fn memory(explain: &Explain) -> String {
    let mut out = String::new();
    match &explain.memory {
        Some(m) => {
            let _ = writeln!(out, "{m:#?}");
        }
        None => out.push_str("the sizes are symbolic\n"),
    }
    for b in &explain.temporaries {
        let name = b
            .buffer
            .map_or("scratch".to_string(), |id| format!("buffer {id}"));
        let _ = writeln!(
            out,
            "{name}: offset {}, {} bytes, steps {} to {}",
            b.offset, b.bytes, b.first, b.last
        );
    }
    out
}

/// The tile programs of a kernel, as text.
fn tiles(kernel: &Kernel) -> Option<String> {
    let texts: Vec<String> = kernel.programs().map(tile_text).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}
