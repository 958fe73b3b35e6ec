#!/usr/bin/env bash
# Compares ViT with and without Dual PatchNorm on scanned digits, in minutes.
#
#   bash scripts/quickstart.sh
#
# Needs Python >= 3.11; installs the rest into .venv. Run it again to resume.
# Results: the table it prints and runs/quickstart/report.html.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=runs/quickstart
python=${VENV:-.venv}/bin/python

# shellcheck source=/dev/null
source scripts/launch/job.sh
bash scripts/venv.sh
job "$python" -m scripts.sweep --out "$out" --seeds_together \
  --config configs/digits.py:stems=none+dpn,seeds=3
"$python" -m scripts.report "$out" -o "$out/report.html" \
  --title "Dual PatchNorm in miniature" \
  --note "Dual PatchNorm (arXiv 2302.01327) puts one LayerNorm before and one \
after the patch embedding of a Vision Transformer: x = LN(PE(LN(x))). Here a \
ViT with it (\`dpn\`) is compared with a plain ViT (\`base\`), three seeds each, \
on the 1,797 scanned digits that come with scikit-learn: 1,438 to train on, 359 \
to test. The two differ in \`config.model.stem_ln\` and in nothing else." \
  --note "What to expect: on test digits like those trained on \
(\`test/prec@1\`) both are nearly perfect, and differ by no more than seeds do. \
On digits of lower contrast (\`corruptions/contrast_prec@1\`, the mean over the \
five severities of CIFAR-10-C) Dual PatchNorm loses nothing, since its first \
LayerNorm takes the contrast out of every patch, and a plain ViT loses much. \
Whether it gains accuracy depends on the setting: docs/results has the studies." \
  --note "The pictures show training, the norm of the gradient by depth (the \
paper's Figure 2: Dual PatchNorm lowers that of the patch embedding) and what \
the first LayerNorm has learned to scale each pixel with (its Figure 3)." \
  --note "To train one of these runs by itself, or with another stem: \
\`python -m trainers.train --workdir runs/digits --config \
configs/digits.py:stem_ln=dpn,seed=0\`."
