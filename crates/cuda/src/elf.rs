//! Checks of machine code before the driver reads it, since the driver does not take its length. It must be an ELF file
//! of this architecture whose parts are all within its bytes. Also adds a section with its PTX.

use kiln_kernel::error::{Result, damaged};

/// `EM_CUDA`.
const MACHINE: u16 = 190;
/// The kinds of sections that take no bytes of the file: `SHT_NOBITS`, and NVIDIA's for uninitialised memory.
const WITHOUT_BYTES: [u32; 1] = [8];
/// The kind of the section that holds the PTX that machine code came from: one of those that are left to users
/// (`SHT_LOUSER` and above).
const PTX: u32 = 0x8000_0000 | u32::from_le_bytes(*b"PTX\0");
const SECTION: u64 = 64;
const SEGMENT: u64 = 56;

/// Errs unless these bytes are machine code for devices of this compute capability.
pub(super) fn check(bytes: &[u8], capability: u32) -> Result<()> {
    let wrong = |why: &str| damaged!("compiled kernels for sm_{capability} {why}");
    let header: Option<&[u8; 64]> = bytes.first_chunk();
    let header = header.ok_or_else(|| wrong("are too short"))?;
    // 64 bits, little-endian.
    if header[..6] != *b"\x7fELF\x02\x01" || u16_at(bytes, 18) != Some(MACHINE) {
        return Err(wrong("are not machine code of a GPU"));
    }
    let flags = u32_at(bytes, 48).unwrap_or(0);
    // The position of the architecture depends on the version of the format.
    let architecture = match header[8] {
        8 => flags >> 8 & 0xff,
        _ => flags & 0xff,
    };
    if architecture != capability {
        return Err(wrong(&format!("are for sm_{architecture}")));
    }
    match parts_are_within(bytes) {
        Some(true) => Ok(()),
        _ => Err(wrong("are cut off")),
    }
}

/// True if the tables, and all parts that they list, lie within the file; `None` if the tables themselves do not.
fn parts_are_within(bytes: &[u8]) -> Option<bool> {
    let is_within = |at: u64, len: u64| {
        let end = at.checked_add(len);
        end.is_some_and(|end| end <= bytes.len() as u64)
    };
    let (segments, sections) = (u64_at(bytes, 32)?, u64_at(bytes, 40)?);
    let (segment_size, segment_count) = (u16_at(bytes, 54)?, u16_at(bytes, 56)?);
    let (section_size, section_count) = (u16_at(bytes, 58)?, u16_at(bytes, 60)?);
    let names = u16_at(bytes, 62)?;
    let has_valid_sizes = (segment_count == 0 || u64::from(segment_size) == SEGMENT)
        && u64::from(section_size) == SECTION
        && names < section_count;
    let has_tables = is_within(segments, SEGMENT * u64::from(segment_count))
        && is_within(sections, SECTION * u64::from(section_count));
    if !has_valid_sizes || !has_tables {
        return Some(false);
    }
    for i in 0..u64::from(segment_count) {
        let header = (segments + i * SEGMENT) as usize;
        if !is_within(u64_at(bytes, header + 8)?, u64_at(bytes, header + 32)?) {
            return Some(false);
        }
    }
    for i in 0..u64::from(section_count) {
        let header = (sections + i * SECTION) as usize;
        let has_no_bytes = WITHOUT_BYTES.contains(&u32_at(bytes, header + 4)?);
        if !has_no_bytes && !is_within(u64_at(bytes, header + 24)?, u64_at(bytes, header + 32)?) {
            return Some(false);
        }
        let (link, linked) = (u32_at(bytes, header + 40)?, u32::from(section_count));
        if link >= linked {
            return Some(false);
        }
    }
    Some(true)
}

/// Machine code with its PTX, which ends in a zero byte, in a section of its own. The section and a new table of
/// sections are appended. `None` if either input has another form.
pub(super) fn with_ptx(mut image: Vec<u8>, ptx: &[u8]) -> Option<Vec<u8>> {
    let is_valid = image.starts_with(b"\x7fELF\x02\x01") && parts_are_within(&image)?;
    let (sections, count) = (u64_at(&image, 40)? as usize, u16_at(&image, 60)?);
    // Larger counts are stored elsewhere.
    if !is_valid || ptx.last() != Some(&0) || count >= 0xfeff {
        return None;
    }
    let mut table = image[sections..][..SECTION as usize * usize::from(count)].to_vec();
    let mut section = [0; SECTION as usize];
    section[4..8].copy_from_slice(&PTX.to_le_bytes());
    section[24..32].copy_from_slice(&(image.len() as u64).to_le_bytes());
    section[32..40].copy_from_slice(&(ptx.len() as u64).to_le_bytes());
    section[48] = 1; // its alignment
    table.extend(section);
    image.extend(ptx);
    image.resize(image.len().next_multiple_of(8), 0);
    let sections = image.len() as u64;
    image[40..48].copy_from_slice(&sections.to_le_bytes());
    image[60..62].copy_from_slice(&(count + 1).to_le_bytes());
    image.extend(table);
    Some(image)
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::super::nvrtc::{Code, Nvrtc};
    use super::*;

    /// Uses static, dynamic and constant memory; for some of it the file has no bytes.
    const SOURCE: &str = "__constant__ float table[4] = {1, 2, 3, 4};
        __device__ float kept[1000];
        extern \"C\" __global__ void k(float* x, long long n) {
            __shared__ float all[512];
            extern __shared__ float more[];
            all[threadIdx.x] = x[threadIdx.x]; more[threadIdx.x] = table[n & 3];
            __syncthreads();
            x[threadIdx.x] = all[511 - threadIdx.x] + more[n] + kept[n];
        }";

    #[test]
    fn complete_machine_code_of_its_architecture_passes() {
        let Ok(nvrtc) = Nvrtc::get() else {
            eprintln!("skipped: no NVRTC");
            return;
        };
        for capability in nvrtc.architectures() {
            let compiled = nvrtc.compile(SOURCE, Code::Cubin(capability)).unwrap();
            let image = compiled.image;
            check(&image, capability).unwrap();
            let other = check(&image, capability + 1).unwrap_err().to_string();
            assert!(
                other.contains(&format!("are for sm_{capability}")),
                "{other}"
            );
            for len in [0, 3, 63, 64, 100, image.len() / 2, image.len() - 1] {
                assert!(check(&image[..len], capability).is_err(), "{len}");
            }
        }
    }

    #[test]
    fn ptx_is_appended_to_machine_code() {
        let Ok(nvrtc) = Nvrtc::get() else {
            eprintln!("skipped: no NVRTC");
            return;
        };
        let image = nvrtc.compile(SOURCE, Code::Cubin(90)).unwrap().image;
        let ptx = b".version 8.0\0";
        let combined = with_ptx(image.clone(), ptx).unwrap();
        check(&combined, 90).unwrap();
        // In the header, only the offset of the table of sections and their number differ.
        let changed = (0..image.len()).filter(|i| image[*i] != combined[*i]);
        let changed: Vec<usize> = changed.collect();
        let is_table = |i: &usize| (40..48).contains(i) || *i == 60 || *i == 61;
        assert!(changed.iter().all(is_table), "{changed:?}");
        assert!(combined[image.len()..].starts_with(ptx));
        let sections = |image: &[u8]| {
            let at = u64_at(image, 40).unwrap() as usize;
            image[at..][..64 * usize::from(u16_at(image, 60).unwrap())].to_vec()
        };
        let (old, new) = (sections(&image), sections(&combined));
        let added = new.strip_prefix(&old[..]).unwrap();
        assert_eq!(u64_at(added, 24), Some(image.len() as u64));
        assert_eq!(u64_at(added, 32), Some(ptx.len() as u64));
        assert!(combined.ends_with(&new));
        assert!(with_ptx(image, b"no end").is_none());
    }

    #[test]
    fn damaged_machine_code_is_refused_or_within_its_bytes() {
        let Ok(nvrtc) = Nvrtc::get() else {
            eprintln!("skipped: no NVRTC");
            return;
        };
        let image = nvrtc.compile(SOURCE, Code::Cubin(90)).unwrap().image;
        let sections = u64_at(&image, 40).unwrap() as usize;
        let offsets = [u64::MAX, image.len() as u64, 1 << 40, u64::MAX - 8];
        let mut refused = 0;
        for at in (0..64).chain(sections..sections + 4 * SECTION as usize) {
            for value in offsets {
                let mut damaged = image.clone();
                let end = (at + 8).min(damaged.len());
                damaged[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
                refused += usize::from(check(&damaged, 90).is_err());
                if let Some(image) = with_ptx(damaged, b"\0") {
                    assert_eq!(parts_are_within(&image), Some(true), "{at} {value}");
                }
            }
        }
        assert!(refused > 200, "{refused}");
        assert!(
            check(
                b"PTX, which is not machine code, but of the length of the header of machine code",
                90
            )
            .is_err()
        );
    }
}
