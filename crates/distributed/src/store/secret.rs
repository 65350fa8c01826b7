//! The secret that ranks share, and proofs of it.

use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};

/// The bytes of a number that is used once.
pub(super) const NONCE: usize = 32;
/// The bytes of a proof.
pub(super) const MAC: usize = 32;
/// The bytes that SHA-256 takes at a time.
const BLOCK: usize = 64;

/// The secret; empty unless `KILN_STORE_SECRET` is set.
pub(super) fn secret() -> Vec<u8> {
    let secret = std::env::var_os("KILN_STORE_SECRET").unwrap_or_default();
    secret.into_encoded_bytes()
}

/// Random bytes.
///
/// # Errors
/// If the system gives none.
pub(super) fn nonce() -> io::Result<[u8; NONCE]> {
    let mut bytes = [0; NONCE];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// HMAC-SHA-256 (RFC 2104) of the parts.
pub(super) fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; MAC] {
    let mut block = [0; BLOCK];
    match key.len() > BLOCK {
        true => block[..MAC].copy_from_slice(&Sha256::digest(key)),
        false => block[..key.len()].copy_from_slice(key),
    }
    let padded = |pad: u8| Sha256::new().chain_update(block.map(|b| b ^ pad));
    let inner = parts
        .iter()
        .fold(padded(0x36), |hash, part| hash.chain_update(part));
    padded(0x5c)
        .chain_update(inner.finalize())
        .finalize()
        .into()
}

/// Compares in a time that does not depend on the bytes.
pub(super) fn is_equal(a: &[u8; MAC], b: &[u8; MAC]) -> bool {
    let differing = a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b));
    std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test cases 1, 2 and 6 of RFC 4231.
    #[test]
    fn proofs_are_hmac() {
        let hex = |bytes: [u8; MAC]| bytes.map(|b| format!("{b:02x}")).concat();
        assert_eq!(
            hex(mac(&[0x0b; 20], &[b"Hi ", b"There"])),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hex(mac(b"Jefe", &[b"what do ya want for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(mac(
                &[0xaa; 131],
                &[b"Test Using Larger Than Block-Size Key - Hash Key First"]
            )),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }
}
