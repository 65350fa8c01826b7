//! Events.

use crate::abi::Out;
use crate::driver::driver;
use crate::queue::Event;
use crate::status::{Failure, INVALID_HANDLE, NOT_READY};
use crate::work::Work;
use std::ffi::{c_float, c_uint};

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: c_uint = 2;

fn write_elapsed(milliseconds: Out<c_float>, start: usize, end: usize) -> Result<(), Failure> {
    let state = driver().state();
    let time = |event: usize| {
        let event = state.events.get(&event).ok_or(INVALID_HANDLE)?;
        if event.recorded == 0 || !event.timing {
            return Err(Failure::from(INVALID_HANDLE));
        }
        event
            .at
            .filter(|_| event.reached == event.recorded)
            .ok_or_else(|| NOT_READY.into())
    };
    let (start, end) = (time(start)?, time(end)?);
    let seconds = match end.checked_duration_since(start) {
        Some(duration) => duration.as_secs_f32(),
        None => -start.duration_since(end).as_secs_f32(),
    };
    milliseconds.set(seconds * 1e3)
}

exports! {
    fn cuEventCreate(event: Out<usize>, flags: c_uint) {
        let driver = driver();
        driver.current_device()?;
        let mut state = driver.state();
        let handle = state.new_handle();
        let timing = flags & DISABLE_TIMING == 0;
        state.events.insert(handle, Event { timing, ..Event::default() });
        event.set(handle)
    }

    fn cuEventDestroy_v2(event: usize) {
        let driver = driver();
        let mut state = driver.state();
        let entry = state.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        match entry.recorded > entry.reached || driver.config.costs.is_some() {
            // Waits that were queued on it must still find it.
            true => entry.is_destroyed = true,
            false => drop(state.events.remove(&event)),
        }
        Ok(())
    }

    fn cuEventRecord(event: usize, stream: usize) {
        let driver = driver();
        let stream = driver.stream(stream)?;
        let mut state = driver.state();
        state.check_healthy()?;
        let capture = state.stream(stream)?.capture;
        let recorded = state.events.get_mut(&event).ok_or(INVALID_HANDLE)?;
        if let Some(id) = capture {
            recorded.captured = Some((id, stream));
            return Ok(());
        }
        recorded.captured = None;
        recorded.recorded += 1;
        recorded.stream = stream;
        let number = recorded.recorded;
        drop(state);
        driver.enqueue(stream, Work::Record(event, number))
    }

    fn cuEventSynchronize(event: usize) {
        let driver = driver();
        if driver.state().events.get(&event).ok_or(INVALID_HANDLE)?.captured.is_some() {
            return Err(crate::status::CAPTURE_UNSUPPORTED.into());
        }
        driver.wait_event(event)
    }

    fn cuEventQuery(event: usize) {
        let driver = driver();
        let (stream, open) = {
            let state = driver.state();
            let event = state.events.get(&event).ok_or(INVALID_HANDLE)?;
            (event.stream, event.recorded > event.reached)
        };
        if !open {
            return driver.state().check_healthy();
        }
        driver.step(stream)?;
        let state = driver.state();
        let event = state.events.get(&event).ok_or(INVALID_HANDLE)?;
        if event.recorded > event.reached { Err(NOT_READY.into()) } else { Ok(()) }
    }

    fn cuEventElapsedTime(milliseconds: Out<c_float>, start: usize, end: usize) {
        write_elapsed(milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<c_float>, start: usize, end: usize) {
        write_elapsed(milliseconds, start, end)
    }
}
