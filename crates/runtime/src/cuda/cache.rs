//! Compiled code on disk, shared by processes.
//!
//! A file is written whole under another name and then renamed, and begins with a checksum, so that a
//! reader finds all of it or nothing. A kernel's key names the unit it was compiled in, and the unit's
//! key names its code.

use super::library::{nvrtc_candidates, variable};
use super::nvrtc::{Code, Nvrtc};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Changes when files of earlier versions must not be read.
const FORMAT: u32 = 1;

/// Names a kernel or a unit.
pub(super) type Key = u128;

/// The key of a source compiled with these flags.
pub(super) fn key(source: &str, code: Code) -> Key {
    let mut h = Xxh3::new();
    h.update(&FORMAT.to_le_bytes());
    for flag in code.flags() {
        h.update(flag.as_bytes());
        h.update(b"\n");
    }
    h.update(source.as_bytes());
    h.digest128()
}

/// A folder of compiled code; without one, nothing is kept.
pub(super) struct Cache(Option<PathBuf>);

static HITS: AtomicU64 = AtomicU64::new(0);

/// How many units of compiled code this process has read from the disk cache.
pub fn cache_hits() -> u64 {
    HITS.load(Ordering::Relaxed)
}

impl Cache {
    /// `KILN_CACHE_DIR`, or `kiln` in the user's cache folder. An empty `KILN_CACHE_DIR` turns it off.
    pub(super) fn of_user() -> Cache {
        let folder = match std::env::var_os("KILN_CACHE_DIR") {
            Some(folder) if folder.is_empty() => None,
            Some(folder) => Some(PathBuf::from(folder)),
            None => variable("XDG_CACHE_HOME")
                .or_else(|| variable("LOCALAPPDATA"))
                .map(PathBuf::from)
                .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))
                .map(|folder| folder.join("kiln")),
        };
        Cache(folder.map(|f| f.join("cuda")))
    }

    /// The unit that a kernel was compiled in.
    pub(super) fn unit_of(&self, kernel: Key, version: Option<(i32, i32)>) -> Option<Key> {
        let found = self.read(&format!("{kernel:032x}.kernel"), version)?;
        Some(Key::from_le_bytes(found.try_into().ok()?))
    }

    /// The code of a unit.
    pub(super) fn code(&self, unit: Key, version: Option<(i32, i32)>) -> Option<Vec<u8>> {
        let found = self.read(&format!("{unit:032x}.code"), version)?;
        HITS.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Keeps the code of a unit of these kernels. A cache that can't be written is no error.
    pub(super) fn keep(&self, unit: Key, kernels: &[Key], code: &[u8], version: (i32, i32)) {
        let written = self.write(&format!("{unit:032x}.code"), code, version);
        for kernel in kernels {
            if written.is_some() {
                let name = format!("{kernel:032x}.kernel");
                let _ = self.write(&name, &unit.to_le_bytes(), version);
            }
        }
    }

    /// The version of this machine's NVRTC, if it has one. Opening that large library takes longer than
    /// loading a program's kernels, so the version of a file that was seen before is remembered.
    pub(super) fn compiler_version(&self) -> Option<(i32, i32)> {
        let name = nvrtc_candidates().into_iter().find_map(|path| {
            let file = path.is_absolute().then(|| path.metadata().ok()).flatten()?;
            let seen = format!("{path:?} {} {:?}", file.len(), file.modified().ok()?);
            Some(format!("{:032x}.nvrtc", xxh3_128(seen.as_bytes())))
        });
        let known = name.as_ref().and_then(|name| self.read(name, None));
        if let Some(Ok(version)) = known.map(<[u8; 8]>::try_from) {
            let version = u64::from_le_bytes(version);
            return Some(((version >> 32) as i32, version as i32));
        }
        let version = Nvrtc::get().ok()?.version();
        if let Some(name) = name {
            let _ = self.write(&name, &version_bytes(version), version);
        }
        Some(version)
    }

    /// What a file holds, if it is whole and of this compiler's version (of any, without one).
    fn read(&self, name: &str, version: Option<(i32, i32)>) -> Option<Vec<u8>> {
        let mut bytes = std::fs::read(self.0.as_ref()?.join(name)).ok()?;
        let (head, body) = bytes.split_at_checked(16)?;
        let (by, contents) = body.split_at_checked(8)?;
        let fits = version.is_none_or(|v| by == version_bytes(v));
        if !fits || xxh3_128(body).to_le_bytes() != head || contents.is_empty() {
            return None;
        }
        Some(bytes.split_off(24))
    }

    fn write(&self, name: &str, contents: &[u8], version: (i32, i32)) -> Option<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let folder = self.0.as_ref()?;
        std::fs::create_dir_all(folder).ok()?;
        let mut body = version_bytes(version).to_vec();
        body.extend_from_slice(contents);
        let mut bytes = xxh3_128(&body).to_le_bytes().to_vec();
        bytes.extend_from_slice(&body);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!("{name}.{}.{count}", std::process::id()));
        let written = std::fs::write(&temporary, bytes)
            .and_then(|()| std::fs::rename(&temporary, folder.join(name)));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written.ok()
    }
}

fn version_bytes((major, minor): (i32, i32)) -> [u8; 8] {
    (((major as u32 as u64) << 32) | minor as u32 as u64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_and_other_compilers_code_are_not_found() {
        let folder = std::env::temp_dir().join(format!("kiln-cuda-cache-{}", std::process::id()));
        let cache = Cache(Some(folder.clone()));
        cache.keep(7, &[1, 2], b"code", (13, 0));
        for version in [None, Some((13, 0))] {
            assert_eq!(cache.unit_of(2, version), Some(7));
            assert_eq!(cache.code(7, version).as_deref(), Some(&b"code"[..]));
        }
        assert_eq!(cache.code(7, Some((12, 9))), None);
        assert_eq!(cache.unit_of(3, None), None);

        let file = folder.join(format!("{:032x}.code", 7));
        let whole = std::fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&file, &damaged).unwrap();
            assert_eq!(cache.code(7, None), None, "byte {at}");
            std::fs::write(&file, &whole[..at]).unwrap();
            assert_eq!(cache.code(7, None), None, "cut at {at}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
