//! Scenes in which times matter: one that was late is played again, since the machine may have stood still for a moment.
//!
//! Linux tells of a thread that waited for a processor, and nothing of a host that did not run a whole virtual machine. Such a moment does
//! not come back with every play, and a service that is late by itself does. Only times are doubted: what else is wrong fails at once.

/// How often a scene is played before what is late is taken for late by itself. The binary under test is not optimised, and has 4 ms of
/// Envoy's 20 for its way back: that is missed now and then by a millisecond, and not six times in a row.
const PLAYS: u32 = 6;

/// Plays a scene until nothing in it is late, and fails when something is every time. A play that fails says what was late.
pub(crate) fn until_in_time(mut play: impl FnMut() -> Result<(), String>) {
    let late: Vec<String> = (1..=PLAYS).map_while(|_| play().inspect_err(|late| println!("late: {late}")).err()).collect();
    assert!(late.len() < PLAYS as usize, "in each of {PLAYS} plays something was late: {late:#?}");
}

/// Whether something that matters was in time; if not, what it was.
pub(crate) fn in_time(is_in_time: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if is_in_time { Ok(()) } else { Err(what()) }
}

/// That it doubts no more than it says.
mod tests {
    use super::*;

    #[test]
    fn what_is_late_once_is_played_again_and_what_is_late_always_fails() {
        let played = |late: u32| {
            let mut plays = 0;
            until_in_time(|| {
                plays += 1;
                in_time(plays > late, || format!("play {plays}"))
            });
            plays
        };
        assert_eq!([played(0), played(1), played(PLAYS - 1)], [1, 2, PLAYS]);
        assert!(std::panic::catch_unwind(|| played(PLAYS)).is_err());
    }
}
