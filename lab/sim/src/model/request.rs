//! A front end's request, which may consist of several calls: their changes are one transaction.
//!
//! The first transaction of each call joins the last one of the call before, so a request survives
//! as a whole or not at all. Two exceptions: a call that may have several transactions keeps the
//! others apart, and contents are written block by block.

use super::Model;
use super::chain::{OpId, Part, Value, Version};

/// The request in progress, if there is one.
#[derive(Debug, Default)]
pub(super) struct Request {
    open: bool,
    /// The last transaction of its calls.
    last: Option<OpId>,
    /// The transaction that the next one joins.
    joins: Option<OpId>,
}

impl Request {
    /// Notes the start of another call.
    pub(super) fn next_call(&mut self) {
        self.joins = self.last;
    }

    /// Takes the transaction that the next one is to join.
    pub(super) fn takes(&mut self) -> Option<OpId> {
        self.joins.take()
    }

    /// Notes a transaction that was added or joined.
    pub(super) fn added(&mut self, op: OpId) {
        self.last = self.open.then_some(op);
    }
}

impl Model {
    /// Starts a request: the calls until [`Model::end_request`] belong to it.
    pub fn begin_request(&mut self) {
        self.request = Request {
            open: true,
            ..Request::default()
        };
    }

    /// Ends the request.
    pub fn end_request(&mut self) {
        self.request = Request::default();
    }

    /// Adds values and needs to an earlier transaction.
    pub(super) fn join(
        &mut self,
        id: OpId,
        makes: Vec<(Part, Value)>,
        needs: Vec<Version>,
    ) -> OpId {
        let makes: Vec<_> = makes
            .into_iter()
            .map(|(part, value)| self.push(id, part, value))
            .collect();
        if let Some(op) = self.ops.get_mut(id) {
            op.makes.extend(makes);
            op.needs.extend(needs);
        }
        id
    }
}
