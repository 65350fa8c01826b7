//! PyTorch's training runs on the device.

use crate::{Failed, Report, Settings};
use kiln_goldens::Folder;
use kiln_goldens::training::{RUNS, differences};

pub(crate) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let folder = Folder::training("gpu")?;
    // The first and the last are of both networks and both optimisers.
    let step = if settings.short { RUNS.len() - 1 } else { 1 };
    for name in RUNS.into_iter().step_by(step) {
        if settings.is_over() {
            report.leave_out(format!("{name} and what comes after it"));
            break;
        }
        eprintln!("  {name}");
        let wrong = differences(&folder.path().join(name), settings.device)?;
        let result = match wrong.is_empty() {
            true => Ok(()),
            false => Err(wrong.join("; ")),
        };
        report.check(name, result);
    }
    Ok(())
}
