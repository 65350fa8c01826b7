//! Weights that are packed when a package is written, for runs to map.

use crate::buffers;
use crate::error::{Result, failed};
use crate::manifest::{EntryInfo, PackedInfo, ProgramInfo, Requires, WEIGHTS};
use crate::program::Program;
use crate::shared::Shared;
use crate::write::{Contents, File, NewProgram, Piece};
use kiln_base::Dim;
use kiln_runtime::{Buffer, Executable, Features, Packed};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Packs the weights of all programs for the CPU, for each level, and lists them in `entries`. `checksum` is the
/// checksum of the weights.
pub(crate) fn add(
    contents: &Contents,
    checksum: &str,
    entries: &mut [EntryInfo],
    files: &mut Vec<File>,
) -> Result<()> {
    let tensors = contents.tensors.iter().map(|(name, b)| (&name[..], b));
    let tensors: BTreeMap<&str, &Buffer> = tensors.collect();
    for (entry, info) in contents.entries.iter().zip(entries) {
        let name = &entry.name;
        let programs = entry.programs.iter().zip(&mut info.programs).enumerate();
        let programs = programs.filter(|(_, (_, info))| info.requires == Requires::Cpu);
        for (number, (new, info)) in programs {
            let inputs = inputs(new, &tensors).map_err(failed(name))?;
            for level in &contents.packed {
                let plan = new.program.plan.clone();
                let executable = Executable::at_level(plan, *level).map_err(failed(name))?;
                let Some(packed) = executable.packed(&inputs).map_err(failed(name))? else {
                    continue;
                };
                let level = level.name();
                let file = format!("entries/{name}/cpu-{number}-{level}.packed");
                files.push((file.clone(), vec![Piece::Stored(packed.bytes)]));
                info.packed.push(PackedInfo {
                    level: level.into(),
                    layout: packed.layout,
                    weights: checksum.into(),
                    file,
                });
            }
        }
    }
    Ok(())
}

/// Inputs of a program: its parameters, and zeros for the other inputs.
fn inputs(
    new: &NewProgram,
    tensors: &BTreeMap<&str, &Buffer>,
) -> Result<Vec<Buffer>, kiln_runtime::Error> {
    let (plan, signature) = (&new.program.plan, &new.program.signature);
    let minima: Vec<i64> = plan.symbols.iter().map(|s| s.min).collect();
    let captured = signature.captured.iter().map(|c| (c.at, &c.name));
    let states = signature.states.iter();
    let states = states.filter_map(|s| Some((s.input?, &s.name)));
    let known: BTreeMap<u32, &String> = captured.chain(states).collect();
    let inputs = plan.inputs.iter().zip(0u32..).map(|(input, i)| {
        let tensor = known.get(&i).and_then(|name| tensors.get(&name[..]));
        if let Some(tensor) = tensor {
            return Ok((*tensor).clone());
        }
        let size = |d: &Dim| d.eval_checked(&minima).unwrap_or(-1);
        let shape: Vec<i64> = input.shape.iter().map(size).collect();
        Buffer::zeros(input.dtype, &shape)
    });
    inputs.collect()
}

/// Lets a program use the package's packed weights, if there are some for the current level that were packed from the
/// package's weights.
pub(crate) fn take(shared: &Shared, info: &ProgramInfo, program: &Program) -> Result<()> {
    let level: Features = program.executable.level();
    let sum = shared.manifest.files.iter().find(|f| f.name == WEIGHTS);
    let is_current = |p: &&PackedInfo| {
        p.level == level.name() && sum.is_some_and(|weights| weights.xxh3 == p.weights)
    };
    let Some(stored) = info.packed.iter().find(is_current) else {
        return Ok(());
    };
    let inputs = program.executable.plan().inputs.iter();
    let empty = inputs.map(|i| Buffer::zeros(i.dtype, &[0]));
    let values = empty.collect::<Result<Vec<_>, _>>();
    let mut values = values.map_err(failed(&stored.file))?;
    for state in &program.signature.states {
        if let Some(index) = state.input {
            let initial = &shared.states.initial()[shared.states.find(&state.name)?];
            values[index as usize] = initial.clone();
        }
    }
    for constant in &program.signature.captured {
        values[constant.at as usize] = shared.constant(&constant.name)?;
    }
    let range = shared.files.get(&stored.file).cloned().unwrap_or(0..0);
    let bytes = buffers::storage(&shared.map, range).map_err(failed(&stored.file))?;
    let packed = Packed {
        layout: stored.layout.clone(),
        bytes: Arc::new(bytes),
    };
    let result = program.executable.store(&values, packed);
    result.map_err(failed(&stored.file))
}
