"""Command lines as people write them: with a secret where `{}` stands, and without one."""

SECRETS = (
    "hunter2x",
    "Tr0ub4dor-3",
    "geheim.2024",
    "9f86d081884c7d659a2feaa0c55ad015",
    "cG9zdGdyZXM6Z2VoZWlt",
    "kX7vQ2mZ9rT4wB1nE6yH",
    "correct-horse-battery",
)
"""What people take: short and long, with and without a form."""

LEAKS = r"""
curl -u admin:{} https://host/x
curl -uadmin:{} https://host/x
curl --user admin:{} https://host/x
curl --user=admin:{} https://host/x
curl -su admin:{} https://host/x
curl --proxy-user admin:{} https://host/x
curl -U admin:{} https://host/x
curl -b session={} https://host/x
curl --cookie session={} https://host/x
curl -bsession={} https://host/x
curl --cookie "a=1; sid={}" https://host/x
curl -H "Authorization: Bearer {}" https://host/x
curl -H "Authorization: token {}" https://host/x
curl -H "X-Api-Key: {}" https://host/x
curl -HX-Auth-Token:{} https://host/x
curl -H "Cookie: sid={}" https://host/x
curl -H "PRIVATE-TOKEN: {}" https://host/x
curl --oauth2-bearer {} https://host/x
curl --header="X-Vault-Token: {}" https://host/x
curl -d password={} https://host/login
curl -d '{{"user":"a","password":"{}"}}' https://host/login
curl --data-raw 'user=a&passwd={}&x=1' https://host/login
curl "https://host/x?key={}"
curl "https://host/x?a=1&api_key={}&b=2"
curl "https://host/x?access_token={}"
curl "https://host/x?sig={}&se=2026"
curl "https://host/x?X-Amz-Signature={}"
curl "https://host/x?code={}"
curl https://admin:{}@host/x
curl https://{}@host/x
curl -E client.pem:{} https://host/x
curl --cert client.pem:{} https://host/x
curl --pass {} --key client.key https://host/x
curl --proxy http://me:{}@proxy:3128 https://host/x
curl --tlspassword {} https://host/x
curl -X POST https://hooks.slack.com/services/T00000000/B00000000/{}
curl https://discord.com/api/webhooks/123456789/{}
curl https://api.telegram.org/bot123456789:{}/sendMessage
curl https://outlook.office.com/webhook/{}/IncomingWebhook/x
wget --user=a --password={} https://host/x
wget --http-password={} https://host/x
wget --header="Authorization: Basic {}" https://host/x
http -a admin:{} https://host/x
http --auth=admin:{} https://host/x
http https://host/x X-API-Token:{}
mysql -uroot -p{} db
mysql -u root --password={} db
mysqldump -p{} db
mysqladmin -uroot -p{} ping
mariadb -p{} db
mysql --defaults-extra-file=x --user=root --pass={} db
psql postgresql://me:{}@host/db
psql "host=h user=me password={} dbname=d"
psql "host=h user=me password='{}' dbname=d"
env PGPASSWORD={} psql -h h
sh -c "PGPASSWORD={} psql -h h"
sshpass -p{} ssh host
sshpass -p {} ssh host
docker login -u me -p {} registry
docker login -p={} registry
docker login --password {} registry
docker run -e DB_PASSWORD={} image
docker run -e MYSQL_ROOT_PASSWORD={} mysql
docker run --env HF_TOKEN={} image
podman login -p {} registry
nerdctl login -p {} registry
skopeo copy --src-creds me:{} a b
skopeo copy --dest-creds=me:{} a b
skopeo login --creds me:{} registry
buildah push --creds me:{} image
helm registry login -u me -p {} host
helm install x ./x --set auth.password={}
helm upgrade x ./x --set-string mysql.rootPassword={}
oras login -p {} host
az login -u me -p {}
az login --service-principal -p {} --tenant t
az storage blob list --account-key {}
az storage blob list --sas-token {}
az storage blob list --connection-string "AccountName=a;AccountKey={};EndpointSuffix=x"
redis-cli -a {} ping
redis-cli --pass {} ping
redis-cli -u redis://:{}@host:6379
redis-server --requirepass {}
valkey-cli -a {} ping
ldapsearch -x -D cn=a -w {} -b dc=x
ldapsearch -x -D cn=a -w{} -b dc=x
ldapmodify -w {} -f x.ldif
ldappasswd -s {} cn=a
mongosh -u me -p {} host
mongo --password {} host
mongodump -p{} --out x
mongosh mongodb://me:{}@host/db
influx -username a -password {}
influx query --token {} x
clickhouse-client --user a --password {}
smbclient //h/s -U me%{}
smbclient //h/s {} -U me
mount -t cifs //h/s /m -o username=me,password={},vers=3
openssl enc -aes-256-cbc -pass pass:{} -in a
openssl pkcs12 -passin pass:{} -in a
openssl rsa -passout pass:{} -in a
openssl enc -aes-256-cbc -k {} -in a
gpg --batch --passphrase {} -d x
7z x -p{} a.7z
zip -P {} a.zip b
unzip -P {} a.zip
unrar x -p{} a.rar
qpdf --password={} a.pdf b.pdf
ansible-playbook -e ansible_password={} p.yml
ansible-playbook -e "ansible_become_pass={}" p.yml
ansible all -e '{{"ansible_ssh_pass": "{}"}}' -m ping
kubectl create secret generic x --from-literal=token={}
kubectl create secret generic x --from-literal=anything={}
kubectl create secret docker-registry x --docker-password={}
kubectl --token={} get pods
kubectl config set-credentials a --token={}
aws configure set aws_secret_access_key {}
env AWS_SECRET_ACCESS_KEY={} aws s3 ls
aws secretsmanager create-secret --name x --secret-string {}
aws rds create-db-instance --master-user-password {}
git clone https://oauth2:{}@host/x.git
git clone https://{}@github.com/x/y
git -c http.extraheader="AUTHORIZATION: bearer {}" fetch
git -c "http.extraHeader=PRIVATE-TOKEN: {}" fetch
huggingface-cli login --token {}
hf auth login --token {}
hf download m --token={}
wandb login {}
wandb login --relogin {}
env WANDB_API_KEY={} python train.py
ngc config set --apikey {}
modal token set --token-id ak-1 --token-secret {}
vastai set api-key {}
ngrok authtoken {}
ngrok config add-authtoken {}
tailscale up --authkey {}
tailscale up --auth-key={}
cloudflared tunnel run --token {}
vault login {}
vault login -method=userpass username=a password={}
vault kv put secret/x value={}
vault kv put -mount=secret x anything={}
vault write auth/x/login password={}
consul kv get -token={} x
etcdctl --user root:{} get x
rabbitmqctl add_user me {}
rabbitmqctl change_password me {}
htpasswd -b file me {}
htpasswd -nb me {}
useradd -p {} me
usermod -p {} me
sqlplus scott/{}@db
sqlplus -s scott/{} @x.sql
sqlcmd -S h -U sa -P {}
bcp t out f -U sa -P{}
impdp userid=scott/{} x=1
exp USERID=scott/{}@db file=x
isql dsn me {}
db2 connect to d user me using {}
jupyter notebook --NotebookApp.token={}
jupyter lab --ServerApp.password={}
jupyter lab --IdentityProvider.token {}
vllm serve m --api-key {}
python -m vllm.entrypoints.openai.api_server --api-key={}
litellm --master_key {}
ray start --redis-password={}
nats --user a --password {} sub x
kcat -X sasl.password={} -L
mosquitto_pub -u a -P {} -t x
mosquitto_sub --pw {} -t x
mc alias set m http://h ACCESSKEY1 {}
s3cmd --secret_key={} ls
rclone copy a b --s3-secret-access-key {}
rclone config create x s3 secret_access_key={}
rclone obscure {}
snmpget -v2c -c {} host x
snmpwalk -v3 -A {} -u a host
snmpwalk -v3 -u a -X {} host
ipmitool -H h -U a -P {} power status
nmcli dev wifi connect s password {}
nmcli con mod x wifi-sec.psk {}
wpa_passphrase ssid {}
java -Djavax.net.ssl.keyStorePassword={} -jar a.jar
java -Dspring.datasource.password={} -jar a.jar
keytool -storepass {} -list
keytool -keypass {} -list
spark-submit --conf spark.hadoop.fs.s3a.secret.key={} a.py
spark-submit --conf spark.authenticate.secret={} a.py
airflow users create -u a -p {}
twine upload -u a -p {} dist/x
npm config set //registry.npmjs.org/:_authToken {}
npm config set _auth={}
pip install --extra-index https://me:{}@pypi.host/simple x
poetry publish -u a -p {}
poetry config http-basic.x me {}
cargo login {}
cargo publish --token {}
dotnet nuget push x -k {}
gem push x --key {}
terraform apply -var db_password={}
terraform apply -var "api_token={}"
pulumi config set --secret x {}
heroku config:set K={}
fly secrets set K={}
vercel --token {}
vercel -t {}
netlify deploy --auth {}
firebase deploy --token {}
sentry-cli --auth-token {} info
gcloud sql users set-password a --password={}
gh secret set X --body {}
gh secret set X -b {}
op signin --account a --secret-key {}
expect -c "spawn ssh h; expect password:; send {}\r"
sh -c "echo {} | sudo -S ls"
sh -c "echo '{}' | docker login --password-stdin"
sh -c "printf %s {} | passwd --stdin me"
sh -c "export DBPASS={}; python a.py"
DBPASS={} python a.py
env DBPASS={} python a.py
env DB_PASS={} python a.py
env DBPASSWORD={} python a.py
env MYSECRET={} python a.py
env SLACK_WEBHOOK_URL=https://hooks.slack.com/services/T0/B0/{} python a.py
env DATABASE_URL=postgres://me:{}@h/d python a.py
python a.py --dbpass {}
python a.py --dbpass={}
python a.py --db-pass {}
python a.py --userpass {}
python a.py --pw {}
python a.py --pw={}
python a.py --key {}
python a.py --key={}
python a.py --s3-key {}
python a.py --s3_key={}
python a.py --pin {}
python a.py --psk {}
python a.py --passcode {}
python a.py --hf_token {}
python a.py --hub_token={}
python a.py --wandb_key {}
python a.py --wandb-key={}
python a.py --openai_key {}
python a.py --openai-key={}
python a.py --secret {}
python a.py --client_secret={}
python a.py --creds me:{}
python a.py --auth me:{}
python a.py --auth={}
python a.py --basic-auth me:{}
python a.py --login me:{}
python a.py --jwt {}
python a.py --sas {}
python a.py --api_token {}
python a.py --apitoken={}
python a.py --mqtt-password {}
python a.py --redis.password={}
python a.py +trainer.logger.api_key={}
python a.py trainer.wandb.api_key={}
python a.py logger.neptune.api_token={}
python -c 'os.environ["DB_PASSWORD"] = "{}"'
python -c "import os; os.environ['HF_TOKEN']='{}'; run()"
python -c 'import os; os.environ["WANDB_API_KEY"]="{}"; run()'
python -c 'os.environ.setdefault("OPENAI_API_KEY", "{}")'
python -c 'os.putenv("DB_PASSWORD", "{}")'
python -c 'from huggingface_hub import login; login("{}")'
python -c 'from huggingface_hub import login; login(token="{}")'
python -c 'import wandb; wandb.login(key="{}")'
python -c 'import openai; openai.api_key = "{}"'
python -c 'c = connect(user="a", password="{}")'
python -c 'c = connect(dict(user="a", passwd="{}"))'
python -c 'd = {{"password": "{}"}}'
python -c 'os.environ.update(DB_PASSWORD="{}")'
python -c 'os.environ.update({{"DB_PASSWORD": "{}"}})'
python -c 'x = boto3.client("s3", aws_secret_access_key="{}")'
python -c 'requests.get(u, auth=("me", "{}"))'
python -c 'requests.get(u, headers={{"Authorization": "Bearer {}"}})'
node -e 'process.env.API_KEY = "{}"'
node -e 'process.env["API_KEY"]="{}"'
ruby -e 'ENV["API_KEY"] = "{}"'
srun --export=ALL,HF_TOKEN={} python a.py
sbatch --export=WANDB_API_KEY={} a.sh
mpirun -x WANDB_API_KEY={} python a.py
torchrun a.py --config '{{"wandb": {{"key": "{}"}}}}'
accelerate launch a.py --hub_token {}
tritonserver --model-control-mode=explicit --http-restricted-api=admin:key={}
ssh -o ProxyCommand="sshpass -p {} ssh h" host
su -c "mysql -uroot -p{} db" me
bash -lc "cd /x && curl -u me:{} https://h | tar x"
bash -c 'TOKEN={} && curl -H "Authorization: $TOKEN" h'
bash -c "mysql --password='{}' <<< x"
tmux new -d "HF_TOKEN={} python a.py"
screen -dmS x bash -c "export API_KEY={}; run"
nohup env API_KEY={} python a.py
timeout 5 curl -u me:{} h
sudo -u me curl -u me:{} h
xargs -n1 curl -u me:{}
parallel curl -u me:{} ::: a b
watch -n1 "redis-cli -a {} info"
/usr/bin/mysql -uroot -p{} db
/opt/bin/redis-cli -a {} info
curl --silent -u "me:{}" https://h
curl -vku me:{} https://h
curl -sSfu me:{} https://h
curl -F password={} https://h
curl --form 'token={}' https://h
curl --data-urlencode 'client_secret={}' https://h
curl -G --data-urlencode "apikey={}" https://h
curl -x http://u:{}@proxy https://h
curl -H 'x-amz-security-token: {}' https://h
curl -H 'X-Figma-Token: {}' h
curl -H 'X-Auth-Email: a' -H 'X-Auth-Key: {}' h
mysql --user=root -p'{}' -e 'select 1'
mysql -u root -h h -p{} -D db
/usr/local/mysql/bin/mysql --password='{}'
mycli -p {} db
pgcli postgres://u:{}@h/d
docker exec -it x mysql -uroot -p{}
docker exec -e TOKEN={} x cmd
docker build --build-arg NPM_TOKEN={} .
docker build --secret id=x,env={} .
docker service create --env-add PASS={} x
docker compose run -e API_SECRET={} web
kubectl exec pod -- mysql -p{}
kubectl run x --image=y --env=PASSWORD={}
kubectl create secret generic x --from-literal=a={} --from-literal=b=2
singularity exec --env HF_TOKEN={} img.sif python a.py
apptainer remote login -u me -p {} h
enroot import docker://user:{}@nvcr.io#x
srun --container-env=HF_TOKEN --export=HF_TOKEN={} x
python a.py --wandb.api_key={}
python a.py --aws-secret {}
python a.py --gcp-key {}
python a.py --neptune_token={}
python a.py --comet-api-key {}
python a.py --telegram_token {}
python a.py --bot-token={}
python a.py --webhook-url https://hooks.slack.com/services/T1/B1/{}
python a.py --slack_webhook=https://hooks.slack.com/services/T1/B1/{}
python a.py --mongo-uri mongodb+srv://me:{}@h/x
python a.py --amqp amqp://me:{}@h
python a.py --db mysql+pymysql://me:{}@h/x
python a.py --dsn "Server=h;User Id=a;Password={};"
python a.py --conn "Driver=x;UID=a;PWD={}"
python a.py --sasl.jaas.config='x required username="a" password="{}";'
python -c "import os;os.environ['WANDB_API_KEY']='{}';import train"
python -c "from a import b; b(secret_key='{}')"
python -c "openai.OpenAI(api_key='{}')"
python -c "os.environ |= dict(HF_TOKEN='{}')"
python -c "login(username='a', password='{}')"
python -m awscli configure set aws_secret_access_key {}
sh -c 'export HF_TOKEN="{}" WANDB_MODE=offline; python a.py'
sh -c 'HF_TOKEN={} WANDB_MODE=offline python a.py'
sh -c "sudo -S <<< {} ls"
sh -c "echo '{}' | kinit me"
sh -c "yes {} | passwd me"
git push https://me:{}@h/x.git
git remote set-url origin https://x-access-token:{}@github.com/x/y
svn co --username a --password {} https://h
hg pull --config auth.x.password={}
rsync rsync://me:{}@h/x .
lftp -u me,{} ftp://h
ncftpput -u me -p {} h . x
ftp ftp://me:{}@h
smbget -U me%{} smb://h/x
rdesktop -u me -p {} h
xfreerdp /u:me /p:{} /v:h
vncviewer -passwd {} h
x11vnc -passwd {} 
jupyter server --ServerApp.token='{}'
jupyter notebook --NotebookApp.password='sha1:{}'
code-server --auth password --password {}
rstudio-server --auth-key {}
mlflow server --backend-store-uri postgresql://me:{}@h/m
prefect cloud login -k {}
dagster-cloud config --api-token {}
clearml-agent --api-secret {}
label-studio start --password {} 
supervisorctl -u me -p {} status
gsutil -o Credentials:gs_secret_access_key={} cp a b
s5cmd --credentials-file x cp a b --secret {}
restic -r s3:x backup --password-command "echo {}"
duplicity a s3://AKIAxxxx:{}@h/x
borg create ssh://me:{}@h/x
export-creds SECRET={}
influxd --admin-token={}
grafana-cli admin reset-admin-password {}
elasticsearch-users useradd me -p {}
elasticdump --input=https://me:{}@h/x
cqlsh -u me -p {} h
neo4j-admin set-initial-password {}
cypher-shell -u me -p {}
snowsql -a acct -u me --pwd {}
rapids-cli --license-key {}
matlab -c license@host -activationKey {}
lmutil --passcode {}
keyring set x y {}
gpg --passphrase-fd 0 --passphrase={} x
ssh-keygen -N {} -f k
ssh-keygen -P {} -f k
openssl genrsa -passout pass:{} 2048
"""
"""One a line, as a shell reads it; doubled braces are single ones."""

HARMLESS = r"""
python train.py --lr 3e-4 --batch-size=32 data/imagenet
python train.py --max_new_tokens=512 --tokenizer meta-llama/Llama-3.1-8B-Instruct
python train.py --pad-token-id 0 --eos_token </s> --bos-token-id 1
python train.py --image-key jpg --text-key txt --key-dim 64 --num-keys 8
python train.py --pin-memory True --pin_memory --num-workers 8
python train.py --token-file /run/t --password-file /run/p
python train.py --rdzv_id 5e7c0d7a-4c2d-4c9b-8f3e-0c7b1c6e1a2b --rdzv-endpoint=10.0.0.1:29500
python train.py --passes 2 --author me --compass north
python train.py --config-name=llama_3_8b_instruct_4bit_awq_v2_fp16
python train.py checkpoint_20240101_123456_step_100000_loss_0.123
python train.py --keypoints 17 --monkey 3 --hotkeys on --keyframe 10
python train.py --attention-key-bias --key-padding-mask none
python train.py --signal-noise 3 --signature-size 10 --authors a,b
python -m vllm.entrypoints.openai.api_server --model Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4 --max-num-batched-tokens 8192
vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 8 --max-model-len 8192
torchrun --nproc_per_node=8 --master_addr=10.0.0.1 --master_port=29500 train.py
torchrun --nnodes 4 --node_rank 0 train.py --deepspeed ds_config.json
accelerate launch --multi_gpu --num_processes 8 train.py --mixed_precision bf16
deepspeed --hostfile hosts --num_gpus 8 train.py --zero_stage 3
mpirun -np 8 -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH=/usr/lib ./all_reduce_perf -b 8 -e 128M
srun --gres=gpu:8 --ntasks-per-node=8 python train.py
jupyter lab --ip=0.0.0.0 --port=8888 --no-browser
jupyter-notebook --notebook-dir=/u/me
python -m ipykernel_launcher -f /u/me/.local/share/jupyter/runtime/kernel-5e7c0d7a-4c2d-4c9b-8f3e-0c7b1c6e1a2b.json
mkdir -p folder/sub
cp -p a b
ssh -p 2222 host
ssh -i key.pem -p 22 me@host
scp -P 2222 a host:b
docker run -p 8080:80 -w /work -u 1000:1000 image
docker run --gpus all --shm-size=8g -v /a:/b image
docker run -u 1000 -e CUDA_VISIBLE_DEVICES=0,1 image
docker pull image@sha256:abababababababababababababababababababababababababababababababab
git clone https://github.com/x/y.git
pip install git+https://github.com/x/y@main
rsync -a --progress a b
tar xzpf a.tgz -C /x
ps -ef -p 1234
ls -a -b -k -w 80
sort -k 2 a
grep -w word -b -c file
nvidia-smi -q -d POWER -l 1
nvidia-smi --query-gpu=power.draw,utilization.gpu --format=csv -lms 100
dcgmi dmon -e 1001,1002 -d 100
tensorboard --logdir runs --port 6006 --bind_all
ray start --head --port=6379 --dashboard-host=0.0.0.0
ffmpeg -hwaccel cuda -i in.mp4 -c:v h264_nvenc -b:v 5M out.mp4
gmx mdrun -deffnm md -nb gpu -pin on -ntomp 8
lmp -k on g 4 -sf kk -in in.lj
namd2 +p8 +devices 0,1 a.conf
blender -b a.blend -o //r -f 1
matlab -batch run
julia --project=. -p 8 a.jl
Rscript a.R --seed 1
java -Xmx8g -cp a.jar:b.jar Main
redis-cli -h host -p 6379 info
redis-server --port 6379 --maxmemory 1gb
mysql -h host -P 3306 -u root db
psql -h host -p 5432 -U me -d db -c select
mongod --port 27017 --dbpath /data
ldapsearch -x -b dc=x uid=me
curl -s https://host/x -o out.json
curl -X POST -H "Content-Type: application/json" https://host/x
curl -b cookies.txt -c cookies.txt https://host/x
curl "https://host/search?q=gpu&page=2&sort=key"
wget -c https://host/data/train.tar
aws s3 cp s3://bucket/key/prefix . --recursive
kubectl get pods -n training -l app=x
helm install x ./x --set image.tag=1.2
python -c "import torch; print(torch.cuda.device_count())"
python -c "import os; os.environ['CUDA_VISIBLE_DEVICES']='0'; run()"
python -c "os.environ.setdefault('NCCL_DEBUG', 'INFO')"
sh -c "cd /work && python train.py --epochs 3"
sh -c "echo start | tee log"
bash -lc "module load cuda/12.4 && srun ./a.out"
ollama runner --model /root/.ollama/models/blobs/sha256-abababababababababababababababababababababababababababababababab --port 1234
python train.py hydra.run.dir=outputs/2026-01-01 model.d_model=512 optimizer.lr=1e-4
python train.py trainer.max_tokens=1e9 data.seq_len=4096 model.n_kv_heads=8
python train.py --cache-dir ~/.cache/huggingface/hub --dataset c4
python infer.py --prompt "Write a secret recipe for pasta"
python infer.py --stop-token-ids 2 --special_tokens a,b
7z x a.7z -oout
zip -r a.zip b
unzip -o a.zip -d x
openssl version -a
snmpget --version
poetry run python a.py
cargo build --release --features cuda
npm run build
terraform apply -var region=eu -auto-approve
sqlcmd -S h -E -Q select
make -j8 -k
cmake -B build -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON
ninja -C build -k 0
"""
