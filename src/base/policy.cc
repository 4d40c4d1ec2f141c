// SPDX-License-Identifier: Apache-2.0
#include "base/policy.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"

namespace cistern {
namespace {

// An enumerator's text, what may follow it, and what --help says of it.
template <class E>
struct Choice {
  E value;
  std::string_view text;
  std::string_view meaning = {};
  std::string_view parameter = {};
};

template <class E>
struct Table {
  std::string_view what;
  std::span<const Choice<E>> choices;
};

constexpr Choice<EvictionPolicy> kEvictions[] = {
    {EvictionPolicy::kReuse, "reuse", "the least expected hits first"},
    {EvictionPolicy::kLru, "lru", "the least recently used first"}};
constexpr Choice<WritePolicy> kWrites[] = {
    {WritePolicy::kThrough, "through", "at once"},
    {WritePolicy::kBack, "back", "when it is cold"},
    {WritePolicy::kSelective, "selective", "after its N-th use", ":N with N from 1 to 255"}};
constexpr Choice<Admission> kAdmissions[] = {
    {Admission::kAll, "all"},
    {Admission::kSecondHit, "second-hit", "used after they were put"},
    {Admission::kWorth, "worth", "likely enough to be used while they lie there"}};
constexpr Choice<Promotion> kPromotions[] = {{Promotion::kAll, "all"},
                                             {Promotion::kSecondHit, "second-hit", "asked for before"},
                                             {Promotion::kWorth, "worth", "worth more than what leaves"}};
constexpr Choice<Outlook> kOutlooks[] = {{Outlook::kUnknown, "unknown"},
                                         {Outlook::kExtended, "extended", "a later prompt starts with it"},
                                         {Outlook::kEnded, "ended", "none does"},
                                         {Outlook::kTool, "tool", "one does when a tool has answered"}};
constexpr Choice<Importance> kImportances[] = {{Importance::kNormal, "normal"},
                                               {Importance::kLow, "low", "a hit counts an eighth"},
                                               {Importance::kHigh, "high", "a hit counts eight times"},
                                               {Importance::kKeep, "keep", "they leave last"}};
static_assert(kMaxSelectiveUses == 255, "what kWrites says");

constexpr Table<EvictionPolicy> kEviction{"eviction policy", kEvictions};
constexpr Table<WritePolicy> kWrite{"write policy", kWrites};
constexpr Table<Admission> kAdmission{"admission", kAdmissions};
constexpr Table<Promotion> kPromotion{"promotion", kPromotions};
constexpr Table<Outlook> kOutlook{"outlook", kOutlooks};
constexpr Table<Importance> kImportance{"importance", kImportances};

template <class E>
std::string_view TextOf(const Table<E>& table, E value) {
  const auto choice = std::ranges::find(table.choices, value, &Choice<E>::value);
  return choice == table.choices.end() ? "unknown" : choice->text;
}

template <class E>
std::string ListOf(const Table<E>& table, bool meanings) {
  std::string list;
  for (const Choice<E>& choice : table.choices) {
    AppendText(list, Text(list.empty() ? "" : ", ", choice.text, choice.parameter));
    if (meanings && !choice.meaning.empty()) AppendText(list, Text(" (", choice.meaning, ")"));
  }
  return list;
}

template <class E>
Status Unknown(const Table<E>& table, std::string_view shown) {
  return Status(Code::kInvalid,
                Text("there is no ", table.what, " ", shown, "; known: ", ListOf(table, false)));
}

template <class E>
std::optional<E> Find(const Table<E>& table, std::string_view text) {
  const auto choice = std::ranges::find(table.choices, text, &Choice<E>::text);
  return choice == table.choices.end() ? std::nullopt : std::optional(choice->value);
}

template <class E>
Result<E> Parse(const Table<E>& table, std::string_view text) {
  if (const std::optional<E> value = Find(table, text)) return *value;
  return Error(Unknown(table, Text("'", Shown(text), "'")));
}

template <class E>
Status Check(const Table<E>& table, E value) {
  if (std::ranges::find(table.choices, value, &Choice<E>::value) != table.choices.end()) return Status();
  return Unknown(table, Text("of number ", static_cast<std::uint64_t>(value)));
}

template <class E>
std::string Help(const Table<E>& table, std::string_view by_default) {
  return Text(ListOf(table, true), "; default: ", by_default);
}

}  // namespace

std::string_view ToString(EvictionPolicy policy) { return TextOf(kEviction, policy); }
std::string_view ToString(Admission admission) { return TextOf(kAdmission, admission); }
std::string_view ToString(Promotion promotion) { return TextOf(kPromotion, promotion); }
std::string_view ToString(Outlook outlook) { return TextOf(kOutlook, outlook); }
std::string_view ToString(Importance importance) { return TextOf(kImportance, importance); }

std::string ToString(const WriteRule& rule) {
  const std::string_view text = TextOf(kWrite, rule.policy);
  return rule.policy == WritePolicy::kSelective ? Text(text, ":", rule.uses) : std::string(text);
}

Result<EvictionPolicy> ParseEvictionPolicy(std::string_view text) { return Parse(kEviction, text); }
Result<Admission> ParseAdmission(std::string_view text) { return Parse(kAdmission, text); }
Result<Promotion> ParsePromotion(std::string_view text) { return Parse(kPromotion, text); }
Result<Outlook> ParseOutlook(std::string_view text) { return Parse(kOutlook, text); }
Result<Importance> ParseImportance(std::string_view text) { return Parse(kImportance, text); }

Result<WriteRule> ParseWriteRule(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::optional<WritePolicy> policy = Find(kWrite, text.substr(0, colon));
  if (policy && colon == std::string_view::npos) return WriteRule{.policy = *policy};
  if (policy == WritePolicy::kSelective) {
    const auto uses = ParseCount("selective", text.substr(colon + 1), 1, kMaxSelectiveUses);
    if (uses) return WriteRule{.policy = *policy, .uses = static_cast<std::uint32_t>(*uses)};
  }
  return Error(Unknown(kWrite, Text("'", Shown(text), "'")));
}

std::string PolicyHelp(EvictionPolicy by_default) { return Help(kEviction, ToString(by_default)); }
std::string PolicyHelp(const WriteRule& by_default) { return Help(kWrite, ToString(by_default)); }
std::string PolicyHelp(Admission by_default) { return Help(kAdmission, ToString(by_default)); }
std::string PolicyHelp(Promotion by_default) { return Help(kPromotion, ToString(by_default)); }

Status CheckPolicy(const WriteRule& rule) {
  if (rule.uses >= 1 && rule.uses <= kMaxSelectiveUses) return Check(kWrite, rule.policy);
  return Unknown(kWrite, Text("of ", rule.uses, " uses"));
}

Status CheckPolicy(EvictionPolicy policy) { return Check(kEviction, policy); }
Status CheckPolicy(Admission admission) { return Check(kAdmission, admission); }
Status CheckPolicy(Promotion promotion) { return Check(kPromotion, promotion); }

Status CheckPolicy(const PromptHints& hints) {
  if (Status status = Check(kOutlook, hints.outlook); !status.ok()) return status;
  if (Status status = Check(kImportance, hints.importance); !status.ok()) return status;
  if (hints.next_turn_ms > kMaxNextTurnMs)
    return Status(Code::kInvalid, Text("next_turn_ms: is ", hints.next_turn_ms, ", at most ", kMaxNextTurnMs,
                                       " is told; leave it out where it is not known"));
  if (hints.next_turn_ms > 0 && hints.outlook == Outlook::kEnded)
    return Status(Code::kInvalid, Text("next_turn_ms: is ", hints.next_turn_ms,
                                       " with the outlook ended, after which there is no turn"));
  return Status();
}

}  // namespace cistern
