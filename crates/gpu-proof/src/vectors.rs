//! The emulator's conformance vectors on the device.

use crate::driver::Driver;
use crate::{Failed, Report, Settings};
use kiln_gpu_emulator::vectors;
use std::path::Path;

pub(crate) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let (major, minor) = settings.device.capability().unwrap_or((0, 0));
    let driver = Driver::open()?;
    // Outputs of the emulator are not goldens.
    let out = settings.out.as_ref().filter(|_| !settings.emulated());
    let mut outputs = Vec::new();
    for vector in vectors() {
        // Code for `sm_90a` runs on that architecture only.
        if vector.architecture.ends_with('a') && (major, minor) != (9, 0) {
            report.note(format!(
                "skipped: {} is for {}",
                vector.name, vector.architecture
            ));
            continue;
        }
        let bytes = match driver.outputs(&vector) {
            Ok(bytes) => bytes,
            Err(e) => {
                // After a fault no later call succeeds.
                report.wrong(format!("{}: {e}", vector.name));
                break;
            }
        };
        let emulated = vector.emulate().map_err(|fault| fault.to_string());
        let compared = emulated.and_then(|ours| vector.compare(&ours, &bytes));
        report.check(&vector.name, compared);
        outputs.push((format!("hardware/{}.bin", vector.name), bytes));
    }
    if let Some(out) = out {
        store(&out.join("hardware.tar"), &outputs)?;
    }
    driver.synchronize()
}

/// Writes an archive of these files.
fn store(archive: &Path, files: &[(String, Vec<u8>)]) -> std::io::Result<()> {
    let mut tar = tar::Builder::new(std::fs::File::create(archive)?);
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, &bytes[..])?;
    }
    tar.into_inner()?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_gives_back_what_was_stored() {
        let folder = std::env::temp_dir().join(format!("kiln-tar-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let files = [
            ("hardware/a.bin".to_string(), vec![1, 2, 3]),
            ("hardware/b.bin".to_string(), vec![]),
        ];
        store(&folder.join("x.tar"), &files).unwrap();
        let file = std::fs::File::open(folder.join("x.tar")).unwrap();
        tar::Archive::new(file).unpack(&folder).unwrap();
        for (name, bytes) in files {
            assert_eq!(std::fs::read(folder.join(name)).unwrap(), bytes);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
