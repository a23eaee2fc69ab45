"""What ``pyarrow.fs`` cannot do on S3, by botocore (extra ``flinkplus[s3]``).

Ring 2: touches S3. Process: the driver. Threads: any.
"""
