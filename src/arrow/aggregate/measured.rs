//! The state that an aggregator keeps for each measure.

use arrow_schema::{DataType, Fields};

use super::decimals::DecimalSums;
use super::description::Measure;
use super::distinct::Distinct;
use super::extremes::{Extreme, FirstLast};
use super::partials::EXACT;
use super::quantile_buckets::QuantileBuckets;
use super::quantiles::Quantiles;
use super::state::State;
use super::sums::{Counts, FloatSums, IntegerSums};
use super::top_n::TopN;

/// How a measure is kept.
pub(super) enum Measured {
    /// In its own state.
    Own(Box<dyn State>),
    /// As the count of values of the sum or mean with this index, which is over the same column.
    CountOf(usize),
}

impl Measured {
    pub(super) fn copied(&self) -> Option<Self> {
        match self {
            Self::Own(state) => state.copied().map(Self::Own),
            Self::CountOf(sum) => Some(Self::CountOf(*sum)),
        }
    }
}

/// Creates the state for a measure whose partials have these fields.
pub(super) fn state_of(name: &str, measure: &Measure, fields: &Fields) -> Box<dyn State> {
    let of = |place: usize| fields[place].data_type().clone();
    match measure {
        Measure::Count { .. } => Box::<Counts>::default(),
        Measure::Sum { .. } | Measure::Mean { .. } => {
            let is_mean = matches!(measure, Measure::Mean { .. });
            match of(0) {
                EXACT => Box::new(IntegerSums::new(name, is_mean)),
                DataType::Decimal256(_, scale) => Box::new(DecimalSums::new(name, is_mean, scale)),
                _ => Box::new(FloatSums::new(is_mean)),
            }
        }
        Measure::Min { .. } => Box::new(Extreme::new(of(0), false)),
        Measure::Max { .. } => Box::new(Extreme::new(of(0), true)),
        Measure::First { .. } => Box::new(FirstLast::new(of(0), of(1), false)),
        Measure::Last { .. } => Box::new(FirstLast::new(of(0), of(1), true)),
        Measure::Quantiles { quantiles, .. } => Box::new(Quantiles::new(quantiles)),
        Measure::QuantileBuckets { accuracy, .. } => Box::new(QuantileBuckets::new(*accuracy)),
        Measure::Distinct { lg_registers, gives_sketches, .. } => {
            Box::new(Distinct::new(*lg_registers, *gives_sketches))
        }
        Measure::TopN { n, .. } => Box::new(TopN::new(*n, fields)),
    }
}
