// The commit that this was built from; empty where the build did not know it.
#pragma once

namespace millrace {
extern const char* const kCommit;
}
