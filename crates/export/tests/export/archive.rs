//! The format of packages, implemented a second time: to damage packages, and to check that the format has not changed.

use serde_json::Value;

/// A member of an archive.
#[derive(Clone, PartialEq)]
pub struct Member {
    pub name: String,
    pub contents: Vec<u8>,
}

fn word(bytes: &[u8], at: usize, n: usize) -> usize {
    let bytes = bytes[at..at + n].iter().rev();
    bytes.fold(0, |a, b| a << 8 | usize::from(*b))
}

/// The members of a valid package.
pub fn read(bytes: &[u8]) -> Vec<Member> {
    let end = bytes.len() - 22;
    let (count, mut at) = (word(bytes, end + 10, 2), word(bytes, end + 16, 4));
    let mut members = Vec::new();
    for _ in 0..count {
        let (size, name, extra) = (
            word(bytes, at + 20, 4),
            word(bytes, at + 28, 2),
            word(bytes, at + 30, 2),
        );
        let local = word(bytes, at + 42, 4);
        let start = local + 30 + word(bytes, local + 26, 2) + word(bytes, local + 28, 2);
        members.push(Member {
            name: String::from_utf8(bytes[at + 46..at + 46 + name].to_vec()).unwrap(),
            contents: bytes[start..start + size].to_vec(),
        });
        at += 46 + name + extra;
    }
    members
}

/// Writes an archive of these members.
pub fn written(members: &[Member]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for Member { name, contents } in members {
        let at = bytes.len();
        let mut common = vec![10, 0, 0, 0, 0, 0, 0, 0, 0x21, 0];
        common.extend(crc32(contents).to_le_bytes());
        common.extend((contents.len() as u32).to_le_bytes());
        common.extend((contents.len() as u32).to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        let before = at + 30 + name.len() + 6;
        let padding = before.next_multiple_of(64) - before;
        bytes.extend(b"PK\x03\x04");
        bytes.extend(&common);
        bytes.extend((6 + padding as u16).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend([0x1e, 0xa1]);
        bytes.extend((2 + padding as u16).to_le_bytes());
        bytes.extend([64, 0]);
        bytes.resize(bytes.len() + padding, 0);
        bytes.extend(contents);
        directory.extend(b"PK\x01\x02\x2d\x03");
        directory.extend(&common);
        directory.extend([0; 8]);
        directory.extend((0o100_644u32 << 16).to_le_bytes());
        directory.extend((at as u32).to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let at = bytes.len() as u32;
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend((members.len() as u16).to_le_bytes());
    bytes.extend((members.len() as u16).to_le_bytes());
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(at.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

/// The checksum of zip archives, computed bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, b| {
        (0..8).fold(crc ^ u32::from(*b), |c, _| {
            (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg())
        })
    })
}

/// Returns the members with correct checksums and sizes.
pub fn summed(mut members: Vec<Member>) -> Vec<Member> {
    for plan in members
        .iter_mut()
        .filter(|m| m.name.ends_with(".plan") && m.contents.len() > 20)
    {
        let sum = plan.contents[20..]
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
                (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
            });
        plan.contents[12..20].copy_from_slice(&sum.to_le_bytes());
    }
    let sums: Vec<(String, usize, String)> = members
        .iter()
        .map(|m| {
            let sum = xxhash_rust::xxh3::xxh3_128(&m.contents);
            (m.name.clone(), m.contents.len(), format!("{sum:032x}"))
        })
        .collect();
    let Some(manifest) = members.iter_mut().find(|m| m.name == "manifest.json") else {
        return members;
    };
    let Ok(mut json) = serde_json::from_slice::<Value>(&manifest.contents) else {
        return members;
    };
    let files = json.get_mut("files").and_then(Value::as_array_mut);
    for file in files.into_iter().flatten().filter_map(Value::as_object_mut) {
        let found = sums
            .iter()
            .find(|(name, ..)| file.get("name").is_some_and(|n| n == name));
        if let Some((_, bytes, sum)) = found {
            file.insert("bytes".into(), (*bytes).into());
            file.insert("xxh3".into(), sum.clone().into());
        }
    }
    let mut text = serde_json::to_vec_pretty(&json).unwrap();
    text.push(b'\n');
    manifest.contents = text;
    members
}
