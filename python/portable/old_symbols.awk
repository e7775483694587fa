# From `objdump -T LIBRARY`: assembler for a library that exports what LIBRARY exported up to some version, and at the end the
# list of the versions. -v limits="GLIBC_2.28 …", -v map=FILE
BEGIN {
  count = split(limits, list, " ")
  for (i = 1; i <= count; ++i) {
    split(list[i], parts, "_")
    limit[parts[1]] = number(parts[2])
  }
}
function number(version,    parts, count) {
  count = split(version, parts, ".")
  return parts[1] * 1000000 + parts[2] * 1000 + (count > 2 ? parts[3] : 0)
}
/\*UND\*|\*ABS\*|^$/ || NF < 6 { next }
{
  name = $NF
  version = $(NF - 1)
  gsub(/[()]/, "", version)
  if (split(version, parts, "_") != 2 || parts[2] !~ /^[0-9.]+$/) next
  age = number(parts[2])
  if (!(parts[1] in limit) || age > limit[parts[1]] || age <= newest[name]) next
  newest[name] = age
  chosen[name] = version
  match($0, /\t[0-9a-f]+/)
  size[name] = substr($0, RSTART + 1, RLENGTH - 1)
  kind[name] = $0 ~ /\t/ && $0 ~ / \.t(bss|data)\t/ ? "tls_object" : substr($0, 18, 7) ~ /O/ ? "object" : "function"
}
END {
  section["tls_object"] = ".section .tbss,\"awT\",@nobits"
  section["object"] = ".data"
  section["function"] = ".text"
  for (name in chosen) {
    symbol = "s" ++symbols
    printf "%s\n.globl %s\n.type %s,@%s\n.size %s,0x%s\n%s: .zero 8\n.symver %s,%s@@@%s\n", section[kind[name]], symbol, symbol,
      kind[name], symbol, size[name], symbol, symbol, name, chosen[name]
    if (!(chosen[name] in versions)) {
      versions[chosen[name]] = 1
      print chosen[name] " { };" >map
    }
  }
  print ".section .note.GNU-stack,\"\",@progbits"
}
