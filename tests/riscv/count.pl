#!/usr/bin/perl
# SPDX-License-Identifier: Apache-2.0
#
# In: BUILD, a directory with `decode`: decode.c and the kernels, these in a section of their own. Out: tables, BUILD/count.json; status 1 if a goal
# is missed or an instruction cannot be placed.
# Next: make count-riscv.
#
# Exact counts of the instructions of one decode step, vector (without vset*), vset* and scalar,
# per byte of K and V, beside the floor; then llvm-mca's cycles of the inner loops beside the larger
# of their loads and their vector arithmetic. Emulators and models give counts, never times. Rows
# without a goal are printed only.
use strict;
use warnings;

my $build = $ENV{BUILD} or die "BUILD?\n";
my $decode = "$build/decode";
my $isa = '+v,+zvfh,+zfh,+zvfbfwma,+zvfbfmin,+zfbfmin';
my $tokens = 512;    # a chunk: what one call gets
my (%ratios, %figures, $missed);

# ---- Instructions ----

my $scalar = qr/^(?:(?:add|sub|sll|srl|sra|mul|div|divu|rem|remu)w?|(?:add|sll|srl|sra)iw?|and|or|xor|andi|ori|xori|
  slti?u?|sltu|seqz|snez|sltz|sgtz|neg|negw|not|sext\.w|zext\.b|mv|li|lui|auipc|la|nop|
  b(?:eq|ne|lt|ge|gt|le)u?z?|j|jr|jal|jalr|ret|call|tail|[ls][bhwd]u?|fence|csrr|csrw|
  f[ls][hwd]|f(?:add|sub|mul|div|min|max|madd|msub|sgnj|sgnjn|eq|lt|le|mv|neg|abs|cvt)\.\S+|fmv\.\S+|mulhu?|unimp)$/x;

sub place {
    my ($op) = @_;
    return 'vset'   if $op =~ /^vset/;
    return 'vector' if $op =~ /^v/;
    return 'scalar' if $op =~ $scalar;
    die "count.pl: cannot place instruction '$op'\n";
}

# address => class, for the kernels' section; and its range.
my (%class, $start, $size);
sub load_kernels {
    open(my $h, '-|', 'llvm-objdump-19', '-h', $decode) or die;
    while (my $l = <$h>) { ($size, $start) = (hex $1, hex $2) if $l =~ /\srvv_text\s+([0-9a-f]+)\s+([0-9a-f]+)/ }
    close $h;
    $size or die "count.pl: $decode has no section rvv_text\n";
    open($h, '-|', 'llvm-objdump-19', '-d', '-j', 'rvv_text', '--no-show-raw-insn',
        "--mattr=$isa", $decode) or die;
    while (my $l = <$h>) { $class{hex $1} = $2 if $l =~ /^\s*([0-9a-f]+):\s+(\S+)/ }
    close $h;
}

sub count {
    my ($cpu, @args) = @_;
    my (%n, $bytes, $name);
    local $ENV{QEMU_CPU} = $cpu;
    my $out = "$build/decode.out";
    my $filter = sprintf '0x%x+0x%x', $start, $size;
    open(my $h, '-|', "qemu-riscv64 -one-insn-per-tb -d exec,nochain -dfilter $filter $decode @args 2>&1 >$out") or die;
    while (my $l = <$h>) {
        next unless $l =~ m{^Trace \d+: \S+ \[[0-9a-f]+/([0-9a-f]+)/};
        my $op = $class{hex $1} or die "count.pl: no instruction at $1\n";
        $n{place($op)}++;
    }
    close $h or die "count.pl: decode @args failed on $cpu\n";
    open($h, '<', $out) or die;
    ($name, $bytes) = (readline($h) // '') =~ /^kernel (\S+) bytes (\d+)/ or die "count.pl: no answer\n";
    close $h;
    unlink $out;
    return ($name, $bytes, $n{vector} // 0, $n{vset} // 0, $n{scalar} // 0);
}

# Vector instructions per byte: PERFORMANCE.md's floor. widen: instructions a row to make f32 of it.
sub lower_bound {
    my ($vlen, $g, $dim, $widen) = @_;
    my $passes = int(($g + 3) / 4);
    my $narrow = $vlen / (8 * $dim) > 1 ? $vlen / (8 * $dim) : 1;
    return ($g + $passes * (0.25 + $widen)) * 4 / $vlen * (1 + $narrow) / 2;
}

sub ratio {
    my ($key, $value, $goal, $what) = @_;
    $ratios{$key} = sprintf '{"median": %.4f, "p10": %.4f, "p90": %.4f%s, "better": "lower", "n": 1, "what": "%s"}',
        $value, $value, $value, defined $goal ? sprintf(', "goal": %.2f', $goal) : '', $what;
    return ' ' unless defined $goal;
    return ' ' if $value <= $goal;
    $missed = 1;
    return '!';
}

my @kinds = (
    [ 'bf16', 'bf16', 'zvfh=true,zvfbfmin=true,zvfbfwma=true', 0, 'attend_bf16_bf16_rvvbf' ],
    [ 'f16', 'f16', 'zvfh=true', 0, 'attend_f16_f16_rvvh' ],
    [ 'bf16-base', 'bf16', 'zvfh=false', 1, 'attend_bf16_bf16_rvv' ],
);

sub count_row {
    my ($kind, $vlen, $half, $dim, $g) = @_;
    my ($label, $dtype, $options, $widen, $wanted) = @$kind;
    my $block = $vlen / ($half ? 16 : 8);
    my ($name, $bytes, $vector, $vset, $other) =
        count("rv64,v=true,vlen=$vlen,$options", $dtype, $g, $dim, $block, $tokens);
    $name eq $wanted or die "count.pl: $name ran, not $wanted\n";
    my $floor = lower_bound($vlen, $g, $dim, $widen);
    my $r = $vector / $bytes / $floor;
    my $goal = !$half ? ($dim >= 128 ? 1.10 : 1.15) : $g == 1 || $dim < 128 ? undef : $widen ? 1.15 : 1.30;
    my $width = $half ? 'half' : 'full';
    my $key = "$label.vlen$vlen.g$g.d$dim.$width";
    my $mark = ratio("P9.$key", $r, $goal, "vector instructions per KV byte / floor, $name, $width-width blocks");
    $figures{"$key.$_->[0]"} = $_->[1] / $bytes
        for [ 'vector', $vector ], [ 'vset', $vset ], [ 'scalar', $other ];
    printf "%-24s %4d %s %4d %2d  %7.4f %7.4f %6.3f%s %5s  %7.4f %7.4f\n", $name, $vlen, $width, $dim, $g,
        $vector / $bytes, $floor, $r, $mark, $goal // '-', $vset / $bytes, $other / $bytes;
}

# ---- Inner loops in llvm-mca's models ----

# The instructions of a function: [address, text].
sub disassemble {
    my ($function) = @_;
    my (@code, $in);
    open(my $h, '-|', 'llvm-objdump-19', '-d', '--no-show-raw-insn', '-j', 'rvv_text', "--mattr=$isa", $decode) or die;
    while (my $l = <$h>) {
        $in = $1 eq $function if $l =~ /^[0-9a-f]+ <([^>]+)>:/;
        push @code, [ hex $1, $2 ] if $in && $l =~ /^\s*([0-9a-f]+):\s+(.*?)\s*$/;
    }
    close $h;
    @code or die "count.pl: no $function in $decode\n";
    return @code;
}

# The innermost loop that loads eight registers, and the vtype it starts with.
sub inner_loop {
    my ($function, @code) = @_;
    my $vtype = 'e32, m4';
    for my $i (0 .. $#code) {
        my ($to) = $code[$i][1] =~ /^b\S+\s.*?0x([0-9a-f]+) </ or next;
        my ($first) = grep { $code[$_][0] == hex $to } 0 .. $i;
        next unless defined $first;
        my @loop = map { $_->[1] } @code[$first .. $i];
        next unless grep { /^vl8r/ } @loop;
        for my $before (map { $_->[1] } @code[0 .. $first]) {
            $vtype = $1 if $before =~ /^vseti?vli\s.*?,\s*(e\d+,\s*\S+),/;
        }
        return ($vtype, @loop);
    }
    die "count.pl: no inner loop in $function\n";
}

sub mca {
    my ($cpu, $vtype, @loop) = @_;
    my ($sew, $lmul) = $vtype =~ /e(\d+),\s*m(\w+)/;
    my $iterations = 100;
    my $file = "$build/mca.s";
    open(my $h, '>', $file) or die;
    print $h "# LLVM-MCA-RISCV-LMUL M$lmul\n# LLVM-MCA-RISCV-SEW E$sew\n";
    for (@loop) {
        s/0x[0-9a-f]+ <.*>/0/;    # branches
        s/^vl(\d)r\.v/vl$1re8.v/;
        print $h "$_\n";
    }
    close $h;
    my $out = `llvm-mca-19 -mtriple=riscv64 -mcpu=$cpu -mattr=$isa -iterations=$iterations $file 2>&1`;
    my ($cycles) = $out =~ /Total Cycles:\s+(\d+)/ or die "count.pl: llvm-mca: $out\n";
    my ($bound) = $out =~ /Block RThroughput:\s+([\d.]+)/;
    unlink $file;
    return ($cycles / $iterations, $bound);
}

# The models charge a widening instruction for its narrow operand (printed as `narrow`). Here it
# counts for what it writes: the arithmetic of four registers, as without extensions.
sub mca_row {
    my ($function, $base, $wanted) = @_;
    my ($vtype, @loop) = inner_loop($function, disassemble($function));
    for my $cpu ('sifive-p670', 'sifive-x280') {
        my ($cycles) = mca($cpu, $vtype, @loop);
        my (undef, $loads) = mca($cpu, $vtype, grep { /^vl|^vset/ } @loop);
        my @math = grep { /^v/ && !/^vl/ } @loop;
        my (undef, $model) = mca($cpu, $vtype, @math);
        s/^vfwmacc(bf16)?/vfmacc/ for @math;
        my (undef, $math) = mca($cpu, 'e32, m4', grep { !/^vset/ } @math);
        my $bound = $loads > $math ? $loads : $math;
        my $goal = $wanted && ($cpu eq 'sifive-p670' || $base) ? 1.05 : undef;
        (my $short = $cpu) =~ s/sifive-//;
        my $mark = ratio("P9.mca.$short.$function", $cycles / $bound, $goal,
            "llvm-mca cycles of the inner loop / max(load, vector arithmetic with widening)");
        printf "%-24s %-12s %7.1f %7.1f %7.1f %7.1f %7.3f%s %5s\n", $function, $cpu, $cycles, $loads, $model, $math,
            $cycles / $bound, $mark, $goal // '-';
    }
}

# ---- All ----

load_kernels();
printf "%-24s %4s %4s %4s %2s  %7s %7s %7s %5s  %7s %7s\n", qw(kernel VLEN width dim G vector floor ratio goal vset scalar);
for my $kind (@kinds) {
    for my $vlen (128, 256, 512, 1024) {
        for my $half (0, 1) {
            next if $half && $vlen < 256;    # blocks have 16 tokens at least
            for my $dim (64, 128) {
                count_row($kind, $vlen, $half, $dim, $_) for 1, 4, 8;
            }
        }
    }
}
printf "\n%-24s %-12s %7s %7s %7s %7s %7s  %5s\n", qw(loop model cycles load narrow arith ratio goal);
for my $row ([ 'bf16', 0 ], [ 'f16', 0 ], [ 'pairs', 1 ]) {
    my ($kind, $base) = @$row;
    mca_row("${kind}_m4_$_", $base, 1) for qw(qk_whole_4 pv_whole_4);
    mca_row("${kind}_m4_$_", $base, 0) for qw(qk_two_1 pv_two_1);    # two chains of latency 6
}

open(my $json, '>', "$build/count.json") or die;
print $json "{\"ratios\": {\n", join(",\n", map { "  \"$_\": $ratios{$_}" } sort keys %ratios),
    "},\n\"figures\": {\n",
    join(",\n", map { sprintf '  "%s": {"value": %.5f, "unit": "instructions/KV byte"}', $_, $figures{$_} } sort keys %figures),
    "}}\n";
close $json;
print "\nmissed: see the rows with !\n" if $missed;
exit($missed ? 1 : 0);
