//! PyTorch's operator samples on the device.

use crate::{Failed, Report, Settings};
use kiln_goldens::samples::{listed, verdicts};
use kiln_goldens::{Engine, Folder, Verdict, ids};

pub(crate) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let folder = Folder::opinfo("gpu")?;
    let listed = listed();
    let engine = Engine::Cuda(settings.device);
    let ids = ids(folder.path())?;
    let share = if settings.short { 25 } else { 1 };
    let mut unsupported = 0;
    for (i, id) in ids.iter().step_by(share).enumerate() {
        if settings.is_over() {
            let done = i * share;
            report.leave_out(format!("samples {done} to {}", ids.len()));
            break;
        }
        if i % 500 == 0 {
            eprintln!("  sample {} of {}", i * share, ids.len());
        }
        let op = id.split('/').next().unwrap_or(id);
        let (_, verdict) = verdicts(folder.path(), std::slice::from_ref(id), engine)?.remove(0);
        match verdict {
            Verdict::Pass => report.check(id, Ok(())),
            Verdict::Unsupported(_) if !listed.contains(op) => unsupported += 1,
            Verdict::Unsupported(why) | Verdict::Wrong(why) => report.wrong(format!("{id}: {why}")),
        }
    }
    if unsupported > 0 {
        report.note(format!(
            "{unsupported} samples are of operators that Kiln has not"
        ));
    }
    Ok(())
}
