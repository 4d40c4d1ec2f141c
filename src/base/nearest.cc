// SPDX-License-Identifier: Apache-2.0
#include "base/nearest.h"

#include <algorithm>
#include <array>

#include "base/format.h"

namespace cistern {
namespace {

constexpr std::size_t kLongestName = 64;

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::size_t EditDistance(std::string_view a, std::string_view b) {
  a = a.substr(0, kLongestName);
  b = b.substr(0, kLongestName);
  // A swap of neighbours looks two rows back, so three rows of the table live at a time.
  std::array<std::array<std::size_t, kLongestName + 1>, 3> rows;
  for (std::size_t j = 0; j <= b.size(); ++j) rows[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    auto& row = rows[i % 3];
    const auto& above = rows[(i - 1) % 3];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = Lower(a[i - 1]) == Lower(b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && Lower(a[i - 1]) == Lower(b[j - 2]) && Lower(a[i - 2]) == Lower(b[j - 1])) {
        row[j] = std::min(row[j], rows[(i - 2) % 3][j - 2] + 1);
      }
    }
  }
  return rows[a.size() % 3][b.size()];
}

std::optional<std::string_view> Nearest(std::string_view name, std::span<const std::string_view> known) {
  std::optional<std::string_view> best;
  std::size_t limit = std::max<std::size_t>(1, std::min(name.size(), kLongestName) / 3) + 1;
  for (std::string_view candidate : known) {
    const std::size_t distance = EditDistance(name, candidate);
    // Replacing every letter is no kinship: "b" is not near "s".
    if (distance < limit && distance < std::max(name.size(), candidate.size())) {
      best = candidate;
      limit = distance;
    }
  }
  return best;
}

std::string UnknownName(std::string_view what, std::string_view name,
                        std::span<const std::string_view> known) {
  std::string text = Text("unknown ", what, " ", Shown(name), ": ");
  if (const auto near = Nearest(name, known)) return Text(text, "did you mean ", *near, "?");
  text.append(known.size() == 1 ? "the only known one is " : "known are ");
  for (std::size_t i = 0; i < known.size(); ++i) AppendText(text, Text(i ? ", " : "", known[i]));
  return text;
}

std::string Shown(std::string_view text, std::size_t most) {
  if (text.empty()) return "(empty)";
  std::string shown(text.substr(0, most));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  if (text.size() > most) shown.append("...");
  return shown;
}

std::string ShownPath(std::string_view path) { return Shown(path, path.size()); }

}  // namespace cistern
