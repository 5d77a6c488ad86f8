//! Views of Flux objects. Unknown fields are kept (`other`), so that an object of a newer Flux survives a round trip.
