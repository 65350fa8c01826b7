//! The framing of records in a file: TensorFlow's TFRecord, with CRC-32C checksums.

/// Appends a record: its length, the checksum of that, its bytes, and the checksum of these.
pub(crate) fn append(to: &mut Vec<u8>, record: &[u8]) {
    let len = (record.len() as u64).to_le_bytes();
    to.extend(len);
    to.extend(mask_checksum(&len).to_le_bytes());
    to.extend(record);
    to.extend(mask_checksum(record).to_le_bytes());
}

/// The masked checksum: a checksum of data that contains checksums would be weak.
fn mask_checksum(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Castagnoli's polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The CRC of each byte.
const REMAINDERS: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| (crc >> 8) ^ REMAINDERS[(crc as u8 ^ byte) as usize];
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_rfc_3720() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&[]), 0);
    }
}
