//! Programs whose machine code is interpreted. So the code emitted for a level is tested on processors that lack the
//! level, and it is checked that it touches only the memory it was given.

mod attention;
mod bugs;
mod layers;
mod programs;
