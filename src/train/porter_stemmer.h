// English words without their endings (Porter 1980, "An algorithm for suffix stripping"), with the
// changes that NLTK makes by default (NLTK_EXTENSIONS), because rouge-score stems by NLTK.
#pragma once
#include <string>

namespace millrace {

// The stem of a word of a-z and 0-9; digits count as consonants.
std::string porter_stem(std::string word);

}  // namespace millrace
