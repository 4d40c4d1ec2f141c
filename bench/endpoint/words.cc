// SPDX-License-Identifier: Apache-2.0
#include "endpoint/words.h"

#include <array>

#include "base/random.h"
#include "workload/draw.h"

namespace cistern {
namespace {

constexpr std::array<std::string_view, 256> kWords = {
    "about",   "above",   "after",   "again",   "air",     "all",     "along",  "also",     "always",
    "and",     "animal",  "another", "answer",  "any",     "are",     "around", "ask",      "away",
    "back",    "base",    "because", "been",    "before",  "began",   "begin",  "being",    "below",
    "best",    "better",  "between", "big",     "black",   "blue",    "boat",   "body",     "book",
    "both",    "box",     "boy",     "bring",   "brought", "build",   "but",    "call",     "came",
    "can",     "car",     "care",    "carry",   "case",    "cause",   "change", "check",    "city",
    "class",   "clear",   "close",   "cold",    "color",   "come",    "common", "correct",  "could",
    "country", "course",  "cut",     "dark",    "day",     "deep",    "did",    "differ",   "does",
    "dog",     "done",    "door",    "down",    "draw",    "drive",   "during", "each",     "early",
    "earth",   "east",    "easy",    "eat",     "end",     "enough",  "even",   "every",    "example",
    "eye",     "face",    "fact",    "family",  "far",     "farm",    "fast",   "father",   "feel",
    "few",     "field",   "figure",  "fill",    "final",   "find",    "fine",   "fire",     "first",
    "fish",    "five",    "follow",  "food",    "foot",    "for",     "force",  "form",     "found",
    "four",    "free",    "friend",  "from",    "full",    "game",    "gave",   "general",  "get",
    "girl",    "give",    "gold",    "good",    "got",     "great",   "green",  "ground",   "group",
    "grow",    "had",     "half",    "hand",    "happen",  "hard",    "has",    "have",     "head",
    "hear",    "heard",   "heat",    "help",    "her",     "here",    "high",   "him",      "his",
    "hold",    "home",    "horse",   "hot",     "hour",    "house",   "how",    "idea",     "inch",
    "island",  "just",    "keep",    "kind",    "king",    "know",    "land",   "language", "large",
    "last",    "late",    "laugh",   "learn",   "leave",   "left",    "less",   "letter",   "life",
    "light",   "like",    "line",    "list",    "listen",  "little",  "live",   "long",     "look",
    "low",     "machine", "made",    "main",    "make",    "man",     "many",   "map",      "mark",
    "may",     "mean",    "measure", "men",     "might",   "mile",    "mind",   "minute",   "miss",
    "money",   "moon",    "more",    "morning", "most",    "mother",  "move",   "much",     "music",
    "must",    "name",    "near",    "need",    "never",   "new",     "next",   "night",    "north",
    "note",    "nothing", "notice",  "noun",    "now",     "number",  "off",    "often",    "old",
    "once",    "one",     "only",    "open",    "order",   "other",   "our",    "out",      "over",
    "own",     "page",    "paper",   "part",    "pass",    "pattern", "people", "person",   "picture",
    "piece",   "place",   "plain",   "plan"};

}  // namespace

std::span<const std::string_view> Vocabulary() { return kWords; }

void AppendWords(const Passage& passage, std::string& out) {
  workload::Draws draws(passage.source);
  out.reserve(out.size() + std::size_t{passage.tokens} * 6);
  std::uint64_t bits = 0;
  for (std::uint32_t i = 0; i < passage.tokens; ++i) {
    bits = i % 8 == 0 ? draws.Next() : bits >> 8;
    if (!out.empty()) out.push_back(' ');
    out.append(kWords[bits & 0xff]);
  }
}

std::uint64_t SourceOf(std::string_view name) { return HashOfText(name.size(), name); }

std::uint64_t SourceOf(std::uint64_t seed, std::string_view kind, std::uint64_t index) {
  return SplitMix(SplitMix(SourceOf(kind) ^ seed) + index);
}

}  // namespace cistern
