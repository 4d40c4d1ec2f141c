// SPDX-License-Identifier: Apache-2.0
#include "namespace_list.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <map>

#include "base/format.h"
#include "base/nearest.h"
#include "base/utf8.h"

namespace cistern {
namespace {

namespace json = boost::json;

constexpr std::size_t kMostListed = 8;

std::string TextOf(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

std::uint64_t NumberOf(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  boost::system::error_code error;
  return value == nullptr ? 0 : value->to_number<std::uint64_t>(error);
}

std::uint64_t NumberOf(const json::object& object, std::string_view member, std::string_view name) {
  const json::value* value = object.if_contains(member);
  return value != nullptr && value->is_object() ? NumberOf(value->get_object(), name) : 0;
}

json::array ArrayOf(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value != nullptr && value->is_array() ? value->get_array() : json::array();
}

// The members of an object that are texts, by name.
std::vector<std::pair<std::string, std::string>> PairsOf(const json::object& object, std::string_view name) {
  std::vector<std::pair<std::string, std::string>> pairs;
  const json::value* const members = object.if_contains(name);
  if (members == nullptr || !members->is_object()) return pairs;
  for (const auto& [member, value] : members->get_object())
    if (value.is_string()) pairs.emplace_back(std::string(member), std::string(value.get_string()));
  std::ranges::sort(pairs);
  return pairs;
}

ListedGroup GroupOf(const json::object& object) {
  ListedGroup group{.name = TextOf(object, "name"),
                    .reach = TextOf(object, "reach"),
                    .window_tokens = NumberOf(object, "window_tokens")};
  for (const json::value& bytes : ArrayOf(object, "part_bytes")) {
    boost::system::error_code error;
    group.part_bytes.push_back(bytes.to_number<std::uint64_t>(error));
  }
  return group;
}

ListedNamespace NamespaceOf(const json::object& object) {
  ListedNamespace ns;
  ns.fingerprint = TextOf(object, "fingerprint");
  for (const json::value& name : ArrayOf(object, "names"))
    if (name.is_string()) ns.names.emplace_back(name.get_string());
  ns.fields = PairsOf(object, "fields");
  ns.labels = PairsOf(object, "labels");
  for (const json::value& group : ArrayOf(object, "groups"))
    if (group.is_object()) ns.groups.push_back(GroupOf(group.get_object()));
  ns.block_tokens = NumberOf(object, "block_tokens");
  const json::value* trusted = object.if_contains("trusted_keys");
  ns.trusted_keys = trusted != nullptr && trusted->is_bool() && trusted->get_bool();
  const json::value* strict = object.if_contains("strict");
  ns.strict = strict != nullptr && strict->is_bool() && strict->get_bool();
  ns.mesh = TextOf(object, "mesh");
  if (ns.mesh.empty()) ns.mesh = "on";
  for (auto [name, text] :
       {std::pair("flash_write", &ns.flash_write), std::pair("flash_admit", &ns.flash_admit)}) {
    *text = TextOf(object, name);
    if (text->empty()) *text = "as the node";
  }
  ns.blocks = NumberOf(object, "blocks");
  ns.memory_records = NumberOf(object, "memory", "records");
  ns.memory_bytes = NumberOf(object, "memory", "bytes");
  ns.flash_records = NumberOf(object, "flash", "records");
  ns.flash_bytes = NumberOf(object, "flash", "bytes");
  ns.uses = NumberOf(object, "uses");
  ns.owners = NumberOf(object, "owners");
  const json::value* unused = object.if_contains("unused_us");
  if (unused != nullptr && unused->is_number()) ns.unused_us = NumberOf(object, "unused_us");
  return ns;
}

bool Means(const ListedNamespace& ns, std::string_view bytes) {
  const std::string text = Utf8(bytes);  // as the node lists it
  if (std::ranges::find(ns.names, text) != ns.names.end()) return true;
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return false;
  const std::pair<std::string, std::string> field(text.substr(0, equals), text.substr(equals + 1));
  return std::ranges::find(ns.fields, field) != ns.fields.end() ||
         std::ranges::find(ns.labels, field) != ns.labels.end();
}

std::string TitlesOf(const std::vector<const ListedNamespace*>& some) {
  std::string text;
  for (std::size_t i = 0; i < some.size() && i < kMostListed; ++i)
    text += (i == 0 ? "" : ", ") + some[i]->title() +
            (some[i]->names.empty() ? std::string() : " (" + some[i]->fingerprint + ")");
  if (some.size() > kMostListed) text += Text(" and ", some.size() - kMostListed, " more");
  return text;
}

std::string PartsOf(const ListedGroup& group) {
  if (group.part_bytes.empty()) return "one part of any length";
  std::string text = Text(group.part_bytes.size(), group.part_bytes.size() == 1 ? " part of" : " parts of");
  // Of equal ranks the size once.
  const bool equal = std::ranges::all_of(group.part_bytes, [&](auto b) { return b == group.part_bytes[0]; });
  for (const std::uint64_t bytes : group.part_bytes) {
    text += Text(" ", bytes);
    if (equal) break;
  }
  return text;
}

class Comparison {
 public:
  void Add(std::string what, std::string a, std::string b, bool identity = true) {
    if (a != b) found_.push_back({std::move(what), std::move(a), std::move(b), identity});
  }
  std::vector<NamespaceDifference> Take() { return std::move(found_); }

 private:
  std::vector<NamespaceDifference> found_;
};

void CompareGroups(const ListedNamespace& a, const ListedNamespace& b, Comparison& all) {
  all.Add("groups", Text(a.groups.size()), Text(b.groups.size()));
  for (std::size_t i = 0; i < std::min(a.groups.size(), b.groups.size()); ++i) {
    const ListedGroup &one = a.groups[i], &other = b.groups[i];
    const std::string what = Text("group ", one.name == other.name ? one.name : Text("number ", i), ": ");
    all.Add(what + "name", one.name, other.name);
    all.Add(what + "reach", one.reach, other.reach);
    all.Add(what + "part_bytes", PartsOf(one), PartsOf(other));
    all.Add(what + "window_tokens", Text(one.window_tokens), Text(other.window_tokens), false);
  }
}

}  // namespace

std::string ListedNamespace::shown() const {
  const auto model = std::ranges::find(labels, "model", [](const auto& label) { return label.first; });
  if (!names.empty() || model == labels.end()) return title();
  return Text(fingerprint.substr(0, 4), ' ', model->second);
}

std::string LabelsText(const ListedNamespace& ns) {
  std::string text;
  for (const auto& [name, value] : ns.labels) text += Text(text.empty() ? "" : " ", name, '=', value);
  return text;
}

Result<std::vector<ListedNamespace>> ParseNamespaces(std::string_view text) {
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  const json::value* list =
      error || !value.is_object() ? nullptr : value.get_object().if_contains("namespaces");
  if (list == nullptr || !list->is_array())
    return Error(Code::kMismatch, "the node's list of namespaces is not one; is it of another version?");
  std::vector<ListedNamespace> all;
  for (const json::value& member : list->get_array())
    if (member.is_object()) all.push_back(NamespaceOf(member.get_object()));
  return all;
}

Result<std::vector<const ListedNamespace*>> FindNamespaces(const std::vector<ListedNamespace>& all,
                                                           std::string_view text) {
  std::vector<const ListedNamespace*> meant, every;
  for (const ListedNamespace& ns : all) {
    every.push_back(&ns);
    if (Means(ns, text)) meant.push_back(&ns);
  }
  // A name may look like a fingerprint: it goes before one.
  for (const ListedNamespace& ns : all)
    if (meant.empty() && text.size() >= 4 && ns.fingerprint.starts_with(text)) meant.push_back(&ns);
  if (!meant.empty()) return meant;
  return Error(
      Code::kMiss,
      Text("namespace ", Shown(text), ": the node has none of this name, fingerprint, field or label; ",
           all.empty() ? std::string("it has none at all") : "it has " + TitlesOf(every)));
}

Result<const ListedNamespace*> FindNamespace(const std::vector<ListedNamespace>& all, std::string_view text) {
  const Result<std::vector<const ListedNamespace*>> meant = FindNamespaces(all, text);
  if (!meant) return Error(meant.error());
  if (meant->size() == 1) return meant->front();
  return Error(Code::kInvalid, Text("namespace ", Shown(text), ": may be any of ", TitlesOf(*meant),
                                    "; give a name or more of a fingerprint"));
}

std::vector<NamespaceDifference> Differences(const ListedNamespace& a, const ListedNamespace& b) {
  constexpr std::string_view kMissing = "(missing)";
  std::map<std::string, std::pair<std::string, std::string>> fields;
  for (const auto& [name, value] : a.fields) fields[name] = {value, std::string(kMissing)};
  for (const auto& [name, value] : b.fields) {
    const auto [at, fresh] = fields.try_emplace(name, std::string(kMissing), value);
    if (!fresh) at->second.second = value;
  }
  Comparison all;
  for (const auto& [name, values] : fields) all.Add("field " + name, values.first, values.second);
  all.Add("labels", LabelsText(a), LabelsText(b), false);
  CompareGroups(a, b, all);
  all.Add("trusted_keys", Text(a.trusted_keys), Text(b.trusted_keys));
  all.Add("strict", Text(a.strict), Text(b.strict));
  all.Add("mesh", a.mesh, b.mesh, false);
  all.Add("block_tokens", Text(a.block_tokens), Text(b.block_tokens), false);
  all.Add("flash_write", a.flash_write, b.flash_write, false);
  all.Add("flash_admit", a.flash_admit, b.flash_admit, false);
  return all.Take();
}

}  // namespace cistern
