//! What large inputs and answers take of memory, one test at a time: beside others, how soon the
//! allocator returns pages depends on the machine.

mod fleet;
mod readers;
mod texts;
