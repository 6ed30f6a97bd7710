// What the loss head's card and kernels share. No includes: device code reads it too.
#pragma once

namespace millrace {

// Copy masses below this count as this much: a row whose word can be neither generated nor copied
// costs about 69 nats instead of infinity.
constexpr double kMassFloor = 1e-30;

}  // namespace millrace
