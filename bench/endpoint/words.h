// SPDX-License-Identifier: Apache-2.0
// Text that follows from a number: common English words, each about one token of the usual vocabularies (how
// many tokens a prompt really had is the server's to say). The same on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cistern {

// The first `tokens` words of the endless text number `source`.
struct Passage {
  std::uint64_t source = 0;
  std::uint32_t tokens = 0;
  friend bool operator==(const Passage&, const Passage&) = default;
};

// Every word that a passage may hold, without white space.
std::span<const std::string_view> Vocabulary();

// Appends the words with one space between any two, and one before them where `out` is not empty.
void AppendWords(const Passage& passage, std::string& out);

// Source numbers: of a salt or any other name, and of the `index`-th text of a kind under a seed.
std::uint64_t SourceOf(std::string_view name);
std::uint64_t SourceOf(std::uint64_t seed, std::string_view kind, std::uint64_t index);

}  // namespace cistern
