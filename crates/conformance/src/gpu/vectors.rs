//! The emulator's conformance vectors on the device.

use super::driver::Driver;
use super::{Failed, Report, Settings};
use kiln_gpu_emulator::vectors;

pub(super) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let (major, minor) = settings.device.capability().unwrap_or((0, 0));
    let driver = Driver::open()?;
    let folder = settings.out.as_ref().map(|out| out.join("hardware"));
    // What the emulator computes itself is no golden.
    let folder = folder.filter(|_| !settings.emulated());
    if let Some(folder) = &folder {
        std::fs::create_dir_all(folder)?;
    }
    for vector in vectors() {
        // Code for `sm_90a` runs on that alone.
        if vector.architecture.ends_with('a') && (major, minor) != (9, 0) {
            report.note(format!(
                "skipped: {} is for {}",
                vector.name, vector.architecture
            ));
            continue;
        }
        let found = match driver.outputs(&vector) {
            Ok(found) => found,
            Err(e) => {
                // After a fault no later call succeeds.
                report.wrong(format!("{}: {e}", vector.name));
                return driver.synchronize();
            }
        };
        if let Some(folder) = &folder {
            std::fs::write(folder.join(format!("{}.bin", vector.name)), &found)?;
        }
        let emulated = vector.emulate().map_err(|fault| fault.to_string());
        let compared = emulated.and_then(|ours| vector.compare(&ours, &found));
        report.check(&vector.name, compared);
    }
    Ok(())
}
