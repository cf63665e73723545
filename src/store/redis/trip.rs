//! One trip to Redis with the checks of a batch: INCRBY for each window that is known to be there, and the script for all others.

use redis::{Pipeline, RedisError, Value};

use crate::store::redis::script::{self, Form, Line, Said, Script};
use crate::time::Time;

/// What goes out.
#[derive(Debug)]
pub struct Trip<'b> {
    /// Lines, and whether they are decided together.
    groups: Vec<(bool, &'b [Line])>,
    /// How many of them the script is for.
    scripted: usize,
    /// What Redis is told the time is, instead of being asked.
    now: Option<Time>,
}

/// What came back.
#[derive(Debug)]
pub struct Back {
    /// What time it is there, if it says so.
    pub now: Option<Time>,
    /// For each line in order what is said of it, or what is wrong with it.
    pub told: Vec<Result<Said, String>>,
    /// What else is to be done: lives of keys that were not there after all.
    pub mends: Pipeline,
}

impl<'b> Trip<'b> {
    /// A trip with these groups of lines.
    pub fn new(groups: impl Iterator<Item = (bool, &'b [Line])>, now: Option<Time>) -> Self {
        let groups: Vec<_> = groups.collect();
        let scripted = groups.iter().flat_map(|(_, lines)| *lines).filter(|line| !line.is_direct()).count();
        Self { groups, scripted, now }
    }

    /// How many checks.
    pub fn checks(&self) -> usize {
        self.lines().count()
    }

    /// All that goes out. What is last tells the time.
    pub fn commands(&self) -> Pipeline {
        let mut commands = Pipeline::with_capacity(self.checks() + 1);
        for line in self.lines().filter(|line| line.is_direct()) {
            line.increment(&mut commands);
        }
        if self.scripted > 0 {
            commands.add_command(Script::serving().command(self.groups.iter().copied(), self.now, Form::Hash));
        } else {
            commands.cmd("TIME");
        }
        commands
    }

    /// The script alone, with its text: for a Redis that has forgotten it.
    pub fn script(&self) -> Pipeline {
        let mut commands = Pipeline::with_capacity(1);
        commands.add_command(Script::serving().command(self.groups.iter().copied(), self.now, Form::Text));
        commands
    }

    /// Reads what came back.
    ///
    /// # Errors
    /// A reply that the script never makes.
    pub fn read(&self, mut values: Vec<Value>) -> Result<Back, RedisError> {
        let last = values.pop().unwrap_or(Value::Nil).extract_error();
        let (now, scripted) = match last {
            Ok(value) if self.scripted > 0 => {
                let replies = script::replies(value, self.scripted)?;
                (Some(replies.now), replies.told)
            }
            Ok(value) => (self.now.or(script::time(&value)), Vec::new()),
            Err(error) => (self.now, vec![Err(error.to_string()); self.scripted]),
        };
        let mut mends = Pipeline::new();
        let (mut direct, mut scripted) = (values.into_iter(), scripted.into_iter());
        let told = self.lines().map(|line| {
            if line.is_direct() {
                line.told(direct.next().unwrap_or(Value::Nil), &mut mends)
            } else {
                scripted.next().unwrap_or_else(|| Err("no reply".to_owned()))
            }
        });
        Ok(Back { now, told: told.collect(), mends })
    }

    fn lines(&self) -> impl Iterator<Item = &'b Line> {
        self.groups.iter().flat_map(|(_, lines)| *lines)
    }
}

/// Whether Redis does not know the script any more.
pub fn is_forgotten(values: &[Value]) -> bool {
    matches!(values.last(), Some(Value::ServerError(error)) if error.code() == "NOSCRIPT")
}
