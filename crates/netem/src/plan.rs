//! What a network does over time.

use serde::{Deserialize, Serialize};

use crate::{ConfigError, LinkConfig};

const MAX_STEPS: usize = 10_000;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The uplink, where left is the person at home.
    LeftToRight,
    /// The downlink.
    RightToLeft,
}

impl Direction {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::LeftToRight, Self::RightToLeft];
}

/// What the link does from an instant on.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Step {
    /// Since the start of the plan.
    pub at_ms: u64,
    /// From then on.
    pub link: LinkConfig,
}

/// Both directions over time. A direction is perfect until its first step.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Plan {
    /// The same seed draws the same random numbers.
    pub seed: u64,
    /// In ascending order of time.
    pub left_to_right: Vec<Step>,
    /// In ascending order of time.
    pub right_to_left: Vec<Step>,
}

/// Why a [`Plan`] cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Not JSON, or not of this shape: correct the text.
    #[error("the plan cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// Correct the step named.
    #[error("{direction:?}, step {index}: {error}")]
    Config {
        /// Which list.
        direction: Direction,
        /// Position in the list, from 0.
        index: usize,
        /// What is wrong with it.
        error: ConfigError,
    },
    /// Sort the steps.
    #[error("{direction:?}, step {index}: atMs is before the step ahead of it")]
    Order {
        /// Which list.
        direction: Direction,
        /// Position in the list, from 0.
        index: usize,
    },
    /// Give fewer.
    #[error("{direction:?}: {count} steps, {MAX_STEPS} are allowed")]
    TooManySteps {
        /// Which list.
        direction: Direction,
        /// How many there are.
        count: usize,
    },
}

impl Plan {
    /// The same link from the start to the end.
    pub fn steady(seed: u64, left_to_right: LinkConfig, right_to_left: LinkConfig) -> Self {
        let steps = |link| vec![Step { at_ms: 0, link }];
        Self {
            seed,
            left_to_right: steps(left_to_right),
            right_to_left: steps(right_to_left),
        }
    }

    /// Reads and checks a plan.
    ///
    /// # Errors
    /// Says what to correct.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let plan: Self = serde_json::from_str(text)?;
        plan.validate()?;
        Ok(plan)
    }

    /// Checks every step.
    ///
    /// # Errors
    /// The first step that is wrong.
    pub fn validate(&self) -> Result<(), PlanError> {
        for direction in Direction::BOTH {
            let steps = self.steps(direction);
            if steps.len() > MAX_STEPS {
                return Err(PlanError::TooManySteps {
                    direction,
                    count: steps.len(),
                });
            }
            for (index, step) in steps.iter().enumerate() {
                step.link.validate().map_err(|error| PlanError::Config {
                    direction,
                    index,
                    error,
                })?;
                if index > 0 && step.at_ms < steps[index - 1].at_ms {
                    return Err(PlanError::Order { direction, index });
                }
            }
        }
        Ok(())
    }

    /// The steps of one direction.
    pub fn steps(&self, direction: Direction) -> &[Step] {
        match direction {
            Direction::LeftToRight => &self.left_to_right,
            Direction::RightToLeft => &self.right_to_left,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_direction_and_the_step() {
        let error = |json| Plan::from_json(json).expect_err(json).to_string();
        assert!(
            error(r#"{"rightToLeft":[{"atMs":0,"link":{}},{"atMs":5,"link":{"delayMs":-1}}]}"#)
                .starts_with("RightToLeft, step 1: delayMs is -1")
        );
        assert!(
            error(r#"{"leftToRight":[{"atMs":5,"link":{}},{"atMs":4,"link":{}}]}"#)
                .contains("step 1: atMs is before")
        );
        assert!(error("[").contains("cannot be read"));
    }
}
