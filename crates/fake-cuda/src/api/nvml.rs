//! NVML, in the same library: a test names it by `KILN_NVML`. What it tells depends on the device's number alone.

use crate::abi::{Out, Text};
use crate::driver::driver;
use crate::status::INVALID_VALUE;
use std::ffi::{c_char, c_int, c_uint};

exports! {
    fn nvmlInit_v2() {
        Ok(())
    }

    fn nvmlSystemGetNVMLVersion(text: Out<c_char>, room: c_uint) {
        text.set_text("13.580.00", room as usize)
    }

    fn nvmlSystemGetDriverVersion(text: Out<c_char>, room: c_uint) {
        text.set_text("580.00", room as usize)
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus: Text, device: Out<usize>) {
        let bus = bus.get()?;
        let index = (0..driver().config.devices).find(|i| bus == format!("0000:{i:02x}:00.0"));
        device.set(index.ok_or(INVALID_VALUE)?)
    }

    fn nvmlDeviceGetUtilizationRates(device: usize, rates: Out<[c_uint; 2]>) {
        rates.set([40 + device as c_uint, 20 + device as c_uint])
    }

    fn nvmlDeviceGetTemperature(device: usize, _sensor: c_int, degrees: Out<c_uint>) {
        degrees.set(50 + device as c_uint)
    }

    fn nvmlDeviceGetPowerUsage(device: usize, milliwatts: Out<c_uint>) {
        milliwatts.set(100_000 + device as c_uint)
    }
}
